//! The head of a request, and how its body is delimited.
//!
//! Only the headers that decide about the connection, the one with the token, and those of a request that another
//! server passed on are looked at. Always: a head that two readers could understand differently is refused, because a
//! proxy before us may be the other reader. No socket here.
//! Start at [`Head::parse`].

use std::mem::MaybeUninit;

use http::Method;

use super::error::{Error, Kind};

/// Bytes of one head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Headers of one head.
const HEADERS_MAX: usize = 100;

/// The version of HTTP that a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 1.0
    Http10,
    /// 1.1
    Http11,
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By counting; there may be nothing to count.
    Length(u64),
    /// By decoding.
    Chunked,
}

impl Framing {
    /// Whether there is no body.
    pub fn is_empty(self) -> bool {
        self == Self::Length(0)
    }
}

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'b> {
    /// The method.
    pub method: Method,
    /// The path, still encoded.
    pub path: &'b str,
    /// What stands behind the question mark.
    pub query: &'b str,
    /// The version.
    pub version: Version,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the peer wants to use the connection again.
    pub keep_alive: bool,
    /// Whether the peer waits to be asked for the body.
    pub expects_continue: bool,
    /// Whether the peer wants a stream of events for an answer.
    pub wants_events: bool,
    /// The server that the peer means: of the target where that is a whole URL, else the value of `Host`.
    pub host: Option<&'b [u8]>,
    /// The value of `Origin`: the web page that sends the request.
    pub origin: Option<&'b [u8]>,
    /// Whether a browser says that a page of another site had it sent.
    pub cross_site: bool,
    /// The value of `Authorization`.
    pub authorization: Option<&'b [u8]>,
    /// The value of `Idempotency-Key`.
    pub idempotency_key: Option<&'b [u8]>,
    /// The value of `Content-Type`.
    pub content_type: Option<&'b [u8]>,
    /// The value of `Content-Encoding`.
    pub content_encoding: Option<&'b [u8]>,
    /// The value of `Last-Event-ID`.
    pub last_event_id: Option<&'b [u8]>,
    /// The value of `If-Match`.
    pub if_match: Option<&'b [u8]>,
    /// The value of `If-None-Match`.
    pub if_none_match: Option<&'b [u8]>,
    /// The server that passed the request on, and what it says about that.
    pub forwarded: Option<(&'b [u8], Option<&'b [u8]>)>,
    /// Bytes of the head itself.
    pub bytes: usize,
}

impl<'b> Head<'b> {
    /// Reads the head at the start of `bytes`; `None` when its end has not arrived.
    pub fn parse(bytes: &'b [u8]) -> Result<Option<Self>, Error> {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(bytes, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return unfinished(bytes),
            Err(error) => return Err(refusal(error, bytes)),
        };
        let method = request.method.unwrap_or_default();
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| Error::invalid("no such method"))?;
        let (authority, path, query) = split_target(request.path.unwrap_or_default())?;
        let version = if request.version == Some(0) { Version::Http10 } else { Version::Http11 };
        let mut noted = Noted::default();
        for header in request.headers.iter() {
            noted.take(header)?;
        }
        if noted.host.is_none() && version == Version::Http11 {
            return Err(Error::invalid("no Host"));
        }
        let host = authority.map(str::as_bytes).or(noted.host);
        if ![host, noted.host].into_iter().flatten().all(is_authority) {
            return Err(Error::invalid("malformed Host"));
        }
        Ok(Some(Head {
            method,
            path,
            query,
            version,
            framing: noted.framing(version)?,
            keep_alive: !noted.close && (version == Version::Http11 || noted.keep_alive),
            expects_continue: noted.expects_continue && version == Version::Http11,
            wants_events: noted.wants_events,
            host,
            origin: noted.origin,
            cross_site: noted.cross_site,
            authorization: noted.authorization,
            idempotency_key: noted.idempotency_key,
            last_event_id: noted.last_event_id,
            if_match: noted.if_match,
            if_none_match: noted.if_none_match,
            content_type: noted.content_type,
            content_encoding: noted.content_encoding,
            forwarded: noted.forwarded_by.map(|by| (by, noted.attempt)),
            bytes: length,
        }))
    }
}

fn unfinished<'b>(bytes: &[u8]) -> Result<Option<Head<'b>>, Error> {
    if bytes.len() < HEAD_BYTES_MAX {
        return Ok(None);
    }
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    Err(if bytes.iter().skip(start).any(|byte| *byte == b'\n') {
        Error::new(Kind::HeadTooLarge, format!("the head of a request holds at most {HEAD_BYTES_MAX} bytes"))
    } else {
        Error::new(Kind::TargetTooLong, format!("a target holds less than {HEAD_BYTES_MAX} bytes"))
    })
}

fn refusal(error: httparse::Error, bytes: &[u8]) -> Error {
    match error {
        httparse::Error::TooManyHeaders => {
            Error::new(Kind::HeadTooLarge, format!("a request has at most {HEADERS_MAX} headers"))
        }
        httparse::Error::Version if names_http(bytes) => {
            Error::new(Kind::UnknownVersion, "only versions 1.0 and 1.1 of HTTP are spoken here")
        }
        other => Error::invalid(format!("malformed request: {other}")),
    }
}

/// Whether the word after method and target is some version of HTTP.
fn names_http(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b' ').nth(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// The server, if it is named, the path and the query of a target, which may be a whole URL.
fn split_target(target: &str) -> Result<(Option<&str>, &str, &str), Error> {
    let target = target.split('#').next().unwrap_or_default();
    let (authority, local) = if target.starts_with('/') || target == "*" {
        (None, target)
    } else {
        let (scheme, rest) = target.split_once("://").ok_or_else(|| Error::invalid("malformed target"))?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(Error::invalid("malformed target"));
        }
        let (authority, local) = rest.find(['/', '?']).map_or((rest, "/"), |at| rest.split_at(at));
        (Some(authority), local)
    };
    let (path, query) = local.split_once('?').unwrap_or((local, ""));
    Ok((authority, if path.is_empty() { "/" } else { path }, query))
}

/// What the headers said.
#[derive(Default)]
struct Noted<'b> {
    host: Option<&'b [u8]>,
    origin: Option<&'b [u8]>,
    cross_site: bool,
    authorization: Option<&'b [u8]>,
    idempotency_key: Option<&'b [u8]>,
    last_event_id: Option<&'b [u8]>,
    if_match: Option<&'b [u8]>,
    if_none_match: Option<&'b [u8]>,
    content_type: Option<&'b [u8]>,
    content_encoding: Option<&'b [u8]>,
    forwarded_by: Option<&'b [u8]>,
    attempt: Option<&'b [u8]>,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    wants_events: bool,
}

impl<'b> Noted<'b> {
    fn take(&mut self, header: &httparse::Header<'b>) -> Result<(), Error> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // Most headers are told apart by their length alone.
        match header.name.len() {
            4 if is("host") => {
                let repeated = self.host.replace(header.value).is_some();
                if repeated {
                    return Err(Error::invalid("more than one Host"));
                }
            }
            6 if is("origin") => {
                let repeated = self.origin.replace(header.value).is_some();
                if repeated {
                    return Err(Error::invalid("more than one Origin"));
                }
            }
            6 if is("accept") => {
                self.wants_events |= header.value.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
            }
            6 if is("expect") => {
                self.expects_continue |= header.value.eq_ignore_ascii_case(b"100-continue");
            }
            8 if is("if-match") => self.if_match = Some(header.value),
            12 if is("content-type") => self.content_type = Some(header.value),
            16 if is("content-encoding") => self.content_encoding = Some(header.value),
            10 if is("connection") => {
                for word in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.close |= word.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            13 if is("if-none-match") => self.if_none_match = Some(header.value),
            13 if is("last-event-id") => self.last_event_id = Some(header.value),
            15 if is("idempotency-key") => self.idempotency_key = Some(header.value),
            13 if is("authorization") => {
                let repeated = self.authorization.replace(header.value).is_some();
                if repeated {
                    return Err(Error::invalid("more than one Authorization"));
                }
            }
            14 if is("content-length") => {
                let length =
                    number(header.value).ok_or_else(|| Error::invalid("malformed Content-Length"))?;
                if self.length.is_some_and(|before| before != length) {
                    return Err(Error::invalid("more than one Content-Length"));
                }
                self.length = Some(length);
            }
            14 if is("sec-fetch-site") => {
                self.cross_site = matches!(header.value, b"cross-site" | b"same-site");
            }
            14 if is("x-forwarded-by") => self.forwarded_by = Some(header.value),
            19 if is("x-forwarded-attempt") => self.attempt = Some(header.value),
            17 if is("transfer-encoding") => {
                if self.chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Error::invalid("the only Transfer-Encoding understood is chunked"));
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn framing(&self, version: Version) -> Result<Framing, Error> {
        match (self.chunked, self.length) {
            (false, length) => Ok(Framing::Length(length.unwrap_or(0))),
            (true, Some(_)) => Err(Error::invalid("both Content-Length and Transfer-Encoding")),
            (true, None) if version == Version::Http10 => {
                Err(Error::invalid("HTTP/1.0 has no Transfer-Encoding"))
            }
            (true, None) => Ok(Framing::Chunked),
        }
    }
}

/// Whether this is a host, with or without a port. Nothing at all is one: what a client sends for a target without a host.
/// RFC 3986 allows more signs, among them the comma, with which some readers would join two hosts.
fn is_authority(bytes: &[u8]) -> bool {
    let is_bracketed = bytes.first() == Some(&b'[');
    let name_bytes = match bytes.iter().position(|byte| *byte == if is_bracketed { b']' } else { b':' }) {
        Some(end) => end + usize::from(is_bracketed),
        None if is_bracketed => return false,
        None => bytes.len(),
    };
    let (name, port) = bytes.split_at(name_bytes);
    let is_port = match port {
        [] => true,
        [b':', digits @ ..] => digits.is_empty() || number(digits).is_some_and(|port| port <= 0xffff),
        _ => false,
    };
    let is_sign = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(byte);
    let is_name = match name {
        [b'[', address @ .., b']'] => {
            !address.is_empty() && address.iter().all(|byte| is_sign(byte) || *byte == b':')
        }
        name => name.iter().all(is_sign),
    };
    is_name && is_port
}

/// Digits and nothing else; the standard parser would take a sign.
fn number(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Option<Head<'_>>, Kind> {
        Head::parse(text.as_bytes()).map_err(|error| error.kind())
    }

    fn with(headers: &str) -> Result<Framing, Kind> {
        let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n");
        parse(&text).map(|head| head.unwrap().framing)
    }

    #[test]
    fn a_head_says_what_is_wanted_and_how_the_body_ends() {
        let text = "POST /a%20b?x=1&y HTTP/1.1\r\nHost: x\r\nCONTENT-length: 5\r\nexpect: 100-Continue\r\nauthorization: Bearer x\r\n\r\nhello";
        let expected = Head {
            method: Method::POST,
            path: "/a%20b",
            query: "x=1&y",
            version: Version::Http11,
            framing: Framing::Length(5),
            keep_alive: true,
            expects_continue: true,
            wants_events: false,
            host: Some(b"x"),
            origin: None,
            cross_site: false,
            authorization: Some(b"Bearer x"),
            idempotency_key: None,
            last_event_id: None,
            if_match: None,
            if_none_match: None,
            content_type: None,
            content_encoding: None,
            forwarded: None,
            bytes: text.len() - 5,
        };
        assert_eq!(parse(text), Ok(Some(expected)));
    }

    #[test]
    fn a_target_may_be_a_whole_url() {
        let target =
            |target: &str| split_target(target).ok().map(|(_, path, query)| format!("{path} {query}"));
        for (given, expected) in [
            ("/p?q", "/p q"),
            ("/p?q?r#f", "/p q?r"),
            ("*", "* "),
            ("http://host:1/p?q", "/p q"),
            ("HTTPS://host", "/ "),
            ("http://host?q", "/ q"),
            ("/http://x", "/http://x "),
        ] {
            assert_eq!(target(given).as_deref(), Some(expected), "{given}");
        }
        for wrong in ["host:80", "p", "ftp://x/p", "://x"] {
            assert_eq!(target(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_body_with_two_ends_is_refused() {
        assert_eq!(with("Content-Length: 5\r\nContent-Length: 5"), Ok(Framing::Length(5)));
        assert_eq!(with("Transfer-Encoding: Chunked"), Ok(Framing::Chunked));
        for wrong in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 5",
            "Content-Length: +5",
            "Content-Length: -1",
            "Content-Length: 0x5",
            "Content-Length: 5 5",
            "Content-Length: 99999999999999999999999",
            "Content-Length:",
            "Content-Length : 5",
            "Authorization: a\r\nauthorization: a",
            "Content-Length: 5\r\n 6",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding:\u{b}chunked",
            "Transfer-Encoding : chunked",
        ] {
            assert_eq!(with(wrong), Err(Kind::Invalid), "{wrong}");
        }
        assert_eq!(parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Err(Kind::Invalid));
    }

    #[test]
    fn a_connection_is_kept_as_the_version_says_unless_a_header_says_otherwise() {
        let kept = |version: &str, header: &str| {
            parse(&format!("GET / HTTP/{version}\r\nHost: x\r\n{header}\r\n\r\n"))
                .unwrap()
                .unwrap()
                .keep_alive
        };
        assert!(kept("1.1", "A: b") && kept("1.0", "Connection: x, Keep-Alive"));
        assert!(!kept("1.1", "Connection: keep-alive, CLOSE") && !kept("1.0", "A: b"));
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused_by_name() {
        let long = "x".repeat(HEAD_BYTES_MAX);
        assert_eq!(parse(&format!("GET /{long}")), Err(Kind::TargetTooLong));
        assert_eq!(parse(&format!("GET / HTTP/1.1\r\nA: {long}")), Err(Kind::HeadTooLarge));
        let many = "a: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(parse(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(Kind::HeadTooLarge));
        assert_eq!(parse("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Err(Kind::UnknownVersion));
        for malformed in ["GET / FTP/1.1\r\n\r\n", "GET\r\n\r\n", "\0", "GET / HTTP/1.1\r\nno colon\r\n\r\n"]
        {
            assert_eq!(parse(malformed), Err(Kind::Invalid), "{malformed:?}");
        }
    }

    #[test]
    fn a_host_is_named_once_and_as_one() {
        let host = |lines: &str| parse_host(&format!("GET / HTTP/1.1\r\n{lines}\r\n"));
        for good in
            ["a.example", "A-b_c:80", "a:", "127.0.0.1:65535", "[::1]", "[fe80::1%25eth0]:1", "caf%C3%A9", ""]
        {
            assert_eq!(host(&format!("Host: {good}\r\n")), Ok(good.into()), "{good}");
        }
        for wrong in [
            "a b", "a,b", "a/b", "u@a", "a:x", "a:65536", "a:1:2", "::1", "[::1", "[]", "[a]b", "a[",
            "\u{e9}",
        ] {
            assert_eq!(host(&format!("Host: {wrong}\r\n")), Err(Kind::Invalid), "{wrong}");
        }
        for wrong in ["", "Host: a\r\nhost: a\r\n"] {
            assert_eq!(host(wrong), Err(Kind::Invalid), "{wrong}");
        }
        assert_eq!(parse_host("GET / HTTP/1.0\r\n\r\n"), Ok(String::new()));
        assert_eq!(parse_host("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"), Ok("a".into()));
        assert_eq!(parse_host("GET http://a/ HTTP/1.1\r\n\r\n"), Err(Kind::Invalid));
        assert_eq!(parse_host("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n"), Err(Kind::Invalid));
    }

    fn parse_host(text: &str) -> Result<String, Kind> {
        let host = parse(text)?.unwrap().host.unwrap_or_default();
        Ok(String::from_utf8(host.to_vec()).unwrap())
    }

    /// What is known after each byte more, up to the first answer.
    fn byte_by_byte(bytes: &[u8]) -> Result<Option<Head<'_>>, Kind> {
        for end in 0..=bytes.len() {
            match Head::parse(&bytes[..end]) {
                Ok(None) => {}
                other => return other.map_err(|error| error.kind()),
            }
        }
        Ok(None)
    }

    proptest! {
        #[test]
        fn a_head_in_pieces_is_the_same_head(
            text in "(GET|POST|PRI|X) (/[a-z?]{0,5}|http://h/[a-z]{0,3}|[a-z:]{1,4}) (HTTP/1\\.[01]|HTTP/2\\.0|FTP/1\\.1)\r\n\
                     (Host: h\r\n)?((Content-Length|Transfer-Encoding|Connection|Expect|X): ?(5|6|chunked|close|100-continue|\t)\r?\n){0,4}\r\n[a-z]{0,3}",
        ) {
            let whole = Head::parse(text.as_bytes()).map_err(|error| error.kind());
            prop_assert_eq!(byte_by_byte(text.as_bytes()), whole);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[A-Z]{1,3} [/a-z:#?*]{0,9} HTTP/1.1\r\n[a-zA-Z:\r\n -]{0,80}",
        ) {
            let _ = Head::parse(&bytes);
            let _ = Head::parse(text.as_bytes());
        }
    }
}
