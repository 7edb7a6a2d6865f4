//! Renders a report of titled tables as text, and as an HTML file that can be mailed: without
//! scripts and external resources, and with styles in the elements, because mail programs drop
//! others.

use std::fmt::Write;

use setup::render;

/// A report: its title, what is to be known about all of it, and its tables.
pub struct MailedPage<'a> {
    pub title: String,
    pub notes: &'a [String],
    pub sections: Vec<ReportSection>,
}

/// A table with its title and notes. Every text may come from users of the fleet.
pub struct ReportSection {
    pub title: String,
    pub notes: Vec<String>,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Column whose percentages are drawn as bars in HTML.
    pub bar: Option<usize>,
}

/// Browsers that open the file load nothing and run no script.
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" \
                      content=\"default-src 'none'; style-src 'unsafe-inline'\">";
const BODY: &str = "font:14px/1.45 Arial,sans-serif;color:#1b2026;background:#fff;max-width:1100px";
const CELL: &str = "padding:3px 10px;border-bottom:1px solid #d8dce2;vertical-align:top";

impl MailedPage<'_> {
    /// Formats the report as text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        self.notes.iter().for_each(|note| text += &format!("{note}\n"));
        for section in &self.sections {
            let _ = write!(text, "\n{}\n", section.title);
            section.notes.iter().for_each(|note| text += &format!("{note}\n"));
            if !section.rows.is_empty() {
                text += &render::grid(&section.head, &section.rows);
                text.push('\n');
            }
        }
        text.trim_end().to_owned()
    }

    /// Formats the report as an HTML file.
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n{POLICY}\n\
             <title>{title}</title>\n<body style=\"{BODY}\">\n\
             <h1 style=\"font-size:18px\">{title}</h1>\n"
        );
        paragraphs(&mut out, self.notes);
        self.sections.iter().for_each(|section| section.write_html(&mut out));
        out + "</body>\n</html>\n"
    }
}

impl ReportSection {
    fn write_html(&self, out: &mut String) {
        let _ = writeln!(out, "<h2 style=\"font-size:15px\">{}</h2>", escaped(&self.title));
        paragraphs(out, &self.notes);
        if self.rows.is_empty() {
            return;
        }
        *out += "<table style=\"border-collapse:collapse\"><tr>";
        for head in &self.head {
            let _ = write!(out, "<th style=\"{CELL};text-align:left\">{}</th>", escaped(head));
        }
        *out += "</tr>\n";
        for row in &self.rows {
            *out += "<tr>";
            for (at, cell) in row.iter().enumerate() {
                let is_number = at > 0 && cell.starts_with(|c: char| c.is_ascii_digit());
                let align = if is_number { "right" } else { "left" };
                let share = cell.parse::<f64>().ok().filter(|_| self.bar == Some(at));
                let bar = share.map_or(String::new(), |share| {
                    let width = share.clamp(0.0, 100.0) * 2.0;
                    format!(
                        "<div style=\"height:8px;width:{width:.0}px;background:#3b74c4\"></div>"
                    )
                });
                let cell = escaped(cell);
                let _ = write!(out, "<td style=\"{CELL};text-align:{align}\">{cell}{bar}</td>");
            }
            *out += "</tr>\n";
        }
        *out += "</table>\n";
    }
}

fn paragraphs(out: &mut String, notes: &[String]) {
    for note in notes {
        let _ = writeln!(out, "<p style=\"color:#5b6572\">{}</p>", escaped(note));
    }
}

/// Escapes a text for HTML. Control characters and invisible ones are shown as such.
fn escaped(text: &str) -> String {
    let text = fleet::plain::without_controls(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{MailedPage, ReportSection};

    #[test]
    fn names_stay_text_in_both_formats() {
        let name = "<script>alert(1)</script>\u{1b}[2J".to_owned();
        let section = ReportSection {
            title: "Jobs".to_owned(),
            notes: vec!["a & b".to_owned()],
            head: vec!["job", "%"],
            rows: vec![vec![name.clone(), "50.0".to_owned()]],
            bar: Some(1),
        };
        let page = MailedPage { title: name, notes: &[], sections: vec![section] };
        let html = page.html();
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
        assert!(html.contains("a &amp; b") && html.contains("width:100px"), "{html}");
        assert!(!html.contains('\u{1b}') && page.text().contains("<script>"), "{html}");
    }
}
