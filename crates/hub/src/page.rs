//! The files of the hub's page: Dr. Sankey and the lists below it. The page holds no data; its
//! script asks the hub with a viewer's token, and shows names only as text.

/// A file that browsers load.
pub struct PageFile {
    pub content_type: &'static str,
    pub text: &'static str,
}

/// Content security policy of the page: only its own files, and no frame around it.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                          connect-src 'self'; base-uri 'none'; form-action 'none'; \
                          frame-ancestors 'none'";
pub const HTML: PageFile =
    PageFile { content_type: "text/html; charset=utf-8", text: include_str!("page/page.html") };
pub const SCRIPT: PageFile =
    PageFile { content_type: "text/javascript; charset=utf-8", text: include_str!("page/page.js") };
/// What the scripts of all pages share.
pub const SESSION: PageFile = PageFile {
    content_type: "text/javascript; charset=utf-8",
    text: include_str!("page/session.js"),
};
pub const CHARTS: PageFile = PageFile {
    content_type: "text/javascript; charset=utf-8",
    text: include_str!("page/charts.js"),
};
pub const STYLE: PageFile =
    PageFile { content_type: "text/css; charset=utf-8", text: include_str!("page/page.css") };
/// The page of findings, with its script.
pub const FINDINGS: PageFile =
    PageFile { content_type: "text/html; charset=utf-8", text: include_str!("page/findings.html") };
pub const FINDINGS_SCRIPT: PageFile = PageFile {
    content_type: "text/javascript; charset=utf-8",
    text: include_str!("page/findings.js"),
};
/// The page of a run or a host, with its script.
pub const DOCTOR: PageFile =
    PageFile { content_type: "text/html; charset=utf-8", text: include_str!("page/doctor.html") };
pub const DOCTOR_SCRIPT: PageFile = PageFile {
    content_type: "text/javascript; charset=utf-8",
    text: include_str!("page/doctor.js"),
};
