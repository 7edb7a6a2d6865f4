//! A small HTTP server for a browser on this machine. The server listens on the loopback address,
//! uses one thread per connection, and requires a secret in every path. The caller supplies the
//! pages.
//!
//! Other users of the machine do not know the secret. The `Host` header is checked, so that a
//! foreign site cannot reach the server through a host name of its own (DNS rebinding). Other sites
//! cannot embed a page in a frame.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, thread};

/// Largest size in bytes of the head of a request.
const HEAD_MAX: usize = 16 << 10;
/// Largest number of headers in a request.
const HEADERS_MAX: usize = 64;
/// Largest number of simultaneous connections. A browser opens six per host.
const CONNECTIONS_MAX: usize = 32;
/// Maximum time for which a connection may be idle before it is closed.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Time between two checks whether the server should stop.
const TICK: Duration = Duration::from_millis(50);

/// A server that is bound to a port, with the secret with which every path must begin.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
}

/// The response for one path, with its bytes and the headers that depend on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPage {
    /// Value of the header `Content-Type`, such as `text/html; charset=utf-8`.
    pub content_type: &'static str,
    /// Value of the content security policy. `None` for content that browsers do not display.
    pub policy: Option<String>,
    pub body: Vec<u8>,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestRefusal {
    Malformed,
    ForeignHost,
    NotFound,
    Method,
    Failed,
}

impl Server {
    /// Listens on the loopback address. With port 0, the system chooses a free port.
    ///
    /// # Errors
    /// The port is in use, or the system cannot provide random numbers.
    pub fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let token = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { listener, address, token })
    }

    /// The path of the page `name` on this server, including the secret.
    pub fn path(&self, name: &str) -> String {
        format!("/{}/{name}", self.token)
    }

    /// Answers requests until `stop` is set. The function `find` returns the page with a name, or
    /// `None` if there is no such page.
    ///
    /// # Errors
    /// Accepting connections fails. A failure of a single connection ends only that connection.
    pub fn run(
        &self,
        stop: &AtomicBool,
        find: &(dyn Fn(&str) -> io::Result<Option<ServedPage>> + Sync),
    ) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let open = AtomicUsize::new(0);
        thread::scope(|threads| {
            while !stop.load(Ordering::SeqCst) {
                match self.listener.accept() {
                    Ok((connection, _)) if open.load(Ordering::SeqCst) < CONNECTIONS_MAX => {
                        open.fetch_add(1, Ordering::SeqCst);
                        let open = &open;
                        threads.spawn(move || {
                            // An error means that the browser closed the connection, which does not
                            // matter.
                            let _ = self.serve(connection, find);
                            open.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                    // Connections beyond the limit are closed at once, and browsers open a new one
                    // for the same request.
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    fn serve(
        &self,
        mut connection: TcpStream,
        find: &dyn Fn(&str) -> io::Result<Option<ServedPage>>,
    ) -> io::Result<()> {
        // On some systems, accepted sockets inherit the listener's non-blocking mode.
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(IDLE_MAX))?;
        connection.set_write_timeout(Some(IDLE_MAX))?;
        let head = read_head(&mut connection)?;
        let answer = self.parse_request(&head).and_then(|(name, is_head)| match find(&name) {
            Ok(Some(page)) => Ok((page, is_head)),
            Ok(None) => Err(RequestRefusal::NotFound),
            Err(_) => Err(RequestRefusal::Failed),
        });
        match answer {
            Ok((page, is_head)) => {
                connection.write_all(response_head("200 OK", &page).as_bytes())?;
                if !is_head {
                    connection.write_all(&page.body)?;
                }
            }
            Err(refusal) => {
                let body = format!("{refusal}\n").into_bytes();
                let page =
                    ServedPage { content_type: "text/plain; charset=utf-8", policy: None, body };
                connection.write_all(response_head(refusal.status(), &page).as_bytes())?;
                connection.write_all(&page.body)?;
            }
        }
        connection.flush()
    }

    /// Checks a request. Returns the name of the requested page, and whether only its head is
    /// requested.
    fn parse_request(&self, head: &[u8]) -> Result<(String, bool), RequestRefusal> {
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut room);
        let parsed = request.parse(head).map_err(|_| RequestRefusal::Malformed)?;
        let (Some(method), Some(path)) = (request.method, request.path) else {
            return Err(RequestRefusal::Malformed);
        };
        if parsed.is_partial() {
            return Err(RequestRefusal::Malformed);
        }
        let host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
        // A request must have exactly one `Host` header. With two, a proxy and this server could
        // disagree about which one counts.
        let mut hosts = request.headers.iter().filter(host);
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(RequestRefusal::ForeignHost);
        };
        let port = self.address.port();
        let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        if !own.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(host.value)) {
            return Err(RequestRefusal::ForeignHost);
        }
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let (token, name) = name.ok_or(RequestRefusal::NotFound)?;
        if !is_same(token.as_bytes(), self.token.as_bytes()) {
            return Err(RequestRefusal::NotFound);
        }
        match method {
            "GET" => Ok((name.to_owned(), false)),
            "HEAD" => Ok((name.to_owned(), true)),
            _ => Err(RequestRefusal::Method),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}/{}/", self.address, self.token)
    }
}

impl RequestRefusal {
    fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::ForeignHost => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::Failed => "500 Internal Server Error",
        }
    }
}

impl fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not an HTTP/1 request",
            Self::ForeignHost => "the Host header names another host",
            Self::NotFound => "no such page; the address is the one that rowmill printed",
            Self::Method => "only GET and HEAD",
            Self::Failed => "the page could not be made; rowmill printed the reason",
        })
    }
}

/// Compares two byte strings in a time that does not depend on where they differ, so that the
/// secret cannot be guessed byte by byte.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let different = one.iter().zip(other).fold(0, |found, (a, b)| found | (a ^ b));
    one.len() == other.len() && different == 0
}

/// Reads the head of a request, which ends at an empty line or at [`HEAD_MAX`] bytes.
fn read_head(connection: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut block = [0; 2048];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
        match connection.read(&mut block)? {
            0 => break,
            count => head.extend_from_slice(&block[..count]),
        }
    }
    Ok(head)
}

fn response_head(status: &str, page: &ServedPage) -> String {
    let policy = page.policy.as_ref().map_or(String::new(), |policy| {
        format!("Content-Security-Policy: {policy}; frame-ancestors 'none'\r\n")
    });
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{policy}\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
        page.content_type,
        page.body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::{RequestRefusal, Server, is_same, read_head};

    fn asked(server: &Server, line: &str, host: &str) -> Result<(String, bool), RequestRefusal> {
        server.parse_request(format!("{line} HTTP/1.1\r\n{host}\r\n").as_bytes())
    }

    #[test]
    fn requests_for_other_hosts_or_tokens_are_refused() {
        let server = Server::bind(0).unwrap();
        let port = server.address.port();
        let own = format!("Host: 127.0.0.1:{port}\r\n");
        let page = server.path("trace");
        let get = format!("GET {page}");
        assert_eq!(asked(&server, &get, &own), Ok(("trace".to_owned(), false)));
        let named = format!("host: LOCALHOST:{port}\r\n");
        let head = format!("HEAD {page}");
        assert_eq!(asked(&server, &head, &named), Ok(("trace".to_owned(), true)));
        let post = format!("POST {page}");
        assert_eq!(asked(&server, &post, &own), Err(RequestRefusal::Method));
        let hosts = ["", "Host: evil.example\r\n", &format!("{own}{own}"), "Host: 127.0.0.1\r\n"];
        for host in hosts {
            assert_eq!(asked(&server, &get, host), Err(RequestRefusal::ForeignHost), "{host}");
        }
        for path in ["/", "/trace", "/00000000000000000000000000000000/", "//", "*"] {
            let get = format!("GET {path}");
            assert_eq!(asked(&server, &get, &own), Err(RequestRefusal::NotFound), "{path}");
        }
        assert_eq!(server.parse_request(b"\x16\x03\x01"), Err(RequestRefusal::Malformed));
        assert_eq!(server.parse_request(b"GET / HTTP/1.1\r\n"), Err(RequestRefusal::Malformed));
    }

    #[test]
    fn two_servers_have_different_secrets() {
        let (one, other) = (Server::bind(0).unwrap(), Server::bind(0).unwrap());
        assert!(one.token.len() == 32 && one.token != other.token);
        assert!(is_same(b"ab", b"ab") && !is_same(b"ab", b"abc") && !is_same(b"ab", b"ac"));
    }

    #[test]
    fn a_head_ends_at_an_empty_line_or_at_the_limit() {
        let head = read_head(&mut b"GET / HTTP/1.1\r\n\r\nrest".as_slice()).unwrap();
        assert!(head.starts_with(b"GET"));
        let long = vec![b'a'; 1 << 20];
        assert!(read_head(&mut long.as_slice()).unwrap().len() < 20 << 10);
    }
}
