//! Splits a text that may be broken into nodes. Only the first keys of a node are recognized, and
//! the rest of the node is not interpreted.

/// A piece of text that should contain exactly one node.
pub struct NodeText<'a> {
    pub at: usize,
    /// The text from the opening to the closing bracket, or `None` if the brackets do not match.
    pub whole: Option<&'a [u8]>,
    /// The text up to the start of the next node, which is used for repair.
    pub rough: &'a [u8],
    /// Whether the text ends after this piece.
    pub is_last: bool,
    /// Whether the comma after the previous node is missing.
    pub lacks_comma: bool,
}

/// Iterates over the pieces of text that should be nodes.
pub struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    expects_comma: bool,
    tail: Option<&'a [u8]>,
    wasted: usize,
}

/// Largest total cost of the search for matching brackets, as a multiple of the text's length.
const PATIENCE: usize = 4;

/// Returns the text before the key `"nodes"`, and the offset at which the first node may begin.
pub fn begin_of_nodes(text: &[u8]) -> Option<(&[u8], usize)> {
    const KEY: &[u8] = b"\"nodes\"";
    let mut from = 0;
    while let Some(found) = text[from..].windows(KEY.len()).position(|window| window == KEY) {
        let key = from + found;
        // The text `"nodes"` may also be a value, so a colon and a bracket must follow it.
        let colon = skip_space(text, key + KEY.len());
        if text.get(colon) == Some(&b':') {
            let open = skip_space(text, colon + 1);
            if text.get(open) == Some(&b'[') {
                return Some((&text[..key], open + 1));
            }
        }
        from = key + KEY.len();
    }
    None
}

impl<'a> Scanner<'a> {
    /// Creates a scanner that starts after the bracket which opens the list of nodes.
    pub fn new(text: &'a [u8], begin: usize) -> Self {
        Self { text, at: begin, expects_comma: false, tail: None, wasted: 0 }
    }

    /// Returns the next piece, or `None` after the last one.
    pub fn next(&mut self) -> Option<NodeText<'a>> {
        let mut at = skip_space(self.text, self.at);
        let mut commas = 0;
        while self.text.get(at) == Some(&b',') {
            commas += 1;
            at = skip_space(self.text, at + 1);
        }
        let lacks_comma = commas == 0 && self.expects_comma;
        match *self.text.get(at)? {
            b']' => {
                self.tail = Some(&self.text[at + 1..]);
                self.at = self.text.len();
                None
            }
            b'{' => Some(self.node(at, lacks_comma)),
            _ => Some(self.rubbish(at)),
        }
    }

    /// Returns the text after the list, or `None` if the list does not end.
    pub fn tail(&self) -> Option<&'a [u8]> {
        self.tail
    }

    fn node(&mut self, at: usize, lacks_comma: bool) -> NodeText<'a> {
        let text = self.text;
        // Each failed search for a bracket reads the rest of the text, which is quadratic in a
        // damaged file. Once failed searches have cost too much, each further search ends after 64
        // KiB.
        let limit = if self.wasted > PATIENCE * text.len() { 1 << 16 } else { text.len() };
        let end = match object_end(&text[at..text.len().min(at.saturating_add(limit))]) {
            Ok(length) => Some(at + length),
            Err(looked_at) => {
                self.wasted += looked_at;
                None
            }
        };
        let next = end.or_else(|| next_node(text, at + 1)).unwrap_or(text.len());
        self.at = next;
        // A piece whose brackets do not match reaches up to the next node and so includes the
        // comma.
        self.expects_comma = end.is_some();
        NodeText {
            at,
            whole: end.map(|end| &text[at..end]),
            rough: &text[at..next],
            is_last: end.is_none() && next == text.len(),
            lacks_comma,
        }
    }

    /// Skips text that is neither a node nor the end of the list, such as a superfluous bracket or
    /// the rest of a node.
    fn rubbish(&mut self, at: usize) -> NodeText<'a> {
        let next = next_node(self.text, at + 1).unwrap_or(self.text.len());
        self.at = next;
        self.expects_comma = false;
        let is_last = next == self.text.len();
        NodeText { at, whole: None, rough: &self.text[at..next], is_last, lacks_comma: false }
    }
}

/// Returns the length of the object at the start of `text`, or else the number of bytes searched.
/// The search stops at a line break inside a string, or at a node that begins inside another node.
fn object_end(text: &[u8]) -> Result<usize, usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => match text_end(text, at + 1) {
                Some(end) => at = end,
                None => return Err(at),
            },
            b'{' if at > 0 && is_node(&text[at..]) => return Err(at),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return if *byte == b'}' { Ok(at + 1) } else { Err(at) };
                }
            }
            _ => {}
        }
        at += 1;
    }
    Err(at)
}

/// Finds the closing quote of a string. The search for the quote ends at a line break.
fn text_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\n' => return None,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Finds the start of the next node at or after `from`.
fn next_node(text: &[u8], from: usize) -> Option<usize> {
    (from..text.len()).find(|at| text[*at] == b'{' && is_node(&text[*at..]))
}

/// Whether an object starts like a node, with its id, or with its name followed by its id.
fn is_node(text: &[u8]) -> bool {
    let id = |at: usize| text[at..].starts_with(b"\"id\"");
    let at = skip_space(text, 1);
    if id(at) {
        return true;
    }
    if !text[at..].starts_with(b"\"name\"") {
        return false;
    }
    let colon = skip_space(text, at + 6);
    let quote = skip_space(text, colon + 1);
    if text.get(colon) != Some(&b':') || text.get(quote) != Some(&b'"') {
        return false;
    }
    let Some(end) = text_end(text, quote + 1) else { return false };
    let comma = skip_space(text, end + 1);
    text.get(comma) == Some(&b',') && id(skip_space(text, comma + 1))
}

/// Returns the first position at or after `at` that is not white space, or the length of the text.
fn skip_space(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    (at + space).min(text.len())
}
