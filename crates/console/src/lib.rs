//! The files of the web console, and how they are answered.
//!
//! A browser that opens the server's address gets a page that shows what the API says. The files are part of the binary, so
//! a server has the console of its own version and needs nothing beside it. Always: the page stands at `/`, everything else
//! below [`PREFIX`]; the policy in [`HEADERS`] lets a page run the files of this server and talk to this server, and nothing
//! else; each file has an `ETag` of its content, so a browser revalidates and never shows an old console. Not here: data,
//! tokens, routes. Start at [`answer`].

use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_64;

/// What the paths of the files begin with; the page itself is `/`.
pub const PREFIX: &str = "/console/";

/// The headers of every file. The policy lists what a page may load; inline scripts and styles are not on it.
pub const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
];

/// One file.
#[derive(Debug)]
pub struct Asset {
    /// Its name below [`PREFIX`].
    pub name: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
    /// Its entity tag, with the quotes.
    pub etag: String,
}

/// What to answer for a file.
#[derive(Debug)]
pub enum Answer {
    /// The file.
    Content(&'static Asset),
    /// The browser has it already.
    NotModified(&'static Asset),
}

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        vec![$(asset($name, include_bytes!(concat!("../web/", $name)))),*]
    };
}

/// Every file; the page is the first.
pub static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    assets![
        "index.html",
        "api.js",
        "attention.js",
        "chart.js",
        "cron.js",
        "dead-letters.js",
        "dialog.js",
        "dom.js",
        "format.js",
        "icon.svg",
        "job.js",
        "jobs.js",
        "keyboard.js",
        "lease.js",
        "live.js",
        "main.js",
        "overview.js",
        "ownership.js",
        "queue.js",
        "queues.js",
        "records.js",
        "router.js",
        "schedules.js",
        "search.js",
        "settings.js",
        "style.css",
        "table.js",
        "theme.js",
        "viewer.js",
        "workers.js",
    ]
});

fn asset(name: &'static str, bytes: &'static [u8]) -> Asset {
    let content_type = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    Asset { name, content_type, bytes, etag: format!("\"{:016x}\"", xxh3_64(bytes)) }
}

/// What to answer to a `GET` of `path` with that `If-None-Match`; `None` when the console has no such file.
pub fn answer(path: &str, if_none_match: Option<&[u8]>) -> Option<Answer> {
    let asset = match path {
        "/" => ASSETS.first()?,
        _ => {
            let name = path.strip_prefix(PREFIX)?;
            ASSETS.iter().skip(1).find(|asset| asset.name == name)?
        }
    };
    let known = if_none_match.and_then(|tags| std::str::from_utf8(tags).ok());
    let matches = |tag: &str| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == asset.etag;
    Some(match known.is_some_and(|tags| tags.split(',').any(|tag| matches(tag.trim()))) {
        true => Answer::NotModified(asset),
        false => Answer::Content(asset),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Bytes of all files. The whole console is to arrive at once over a slow line.
    const BYTES_MAX: usize = 300 << 10;

    fn name(path: &str) -> Option<&'static str> {
        match answer(path, None)? {
            Answer::Content(asset) | Answer::NotModified(asset) => Some(asset.name),
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_no_other() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/web")).unwrap();
        let files: BTreeSet<_> =
            folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        let served: BTreeSet<_> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(served, files);
        assert_eq!(name("/"), Some("index.html"));
        assert_eq!(name("/console/main.js"), Some("main.js"));
        for path in ["", "/index.html", "/console", "/console/", "/console/index.html", "/console/../main.js"]
        {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn a_browser_that_has_the_file_is_not_sent_it_again() {
        let etag = ASSETS[0].etag.as_str();
        for (tags, is_known) in [
            (etag.to_owned(), true),
            (format!("W/{etag}"), true),
            (format!("\"x\", {etag}"), true),
            ("*".to_owned(), true),
            ("\"x\"".to_owned(), false),
            (String::new(), false),
        ] {
            let answer = answer("/", Some(tags.as_bytes())).unwrap();
            assert_eq!(matches!(answer, Answer::NotModified(_)), is_known, "{tags}");
        }
    }

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn no_file_loads_anything_from_elsewhere_or_needs_an_inline_script() {
        for asset in ASSETS.iter() {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let text = text.replace("http://www.w3.org/", "");
            for forbidden in
                ["http://", "https://", "innerHTML", "eval(", "new Function", " style=\"", "onclick="]
            {
                assert!(!text.contains(forbidden), "{} contains {forbidden}", asset.name);
            }
        }
        let page = std::str::from_utf8(ASSETS[0].bytes).unwrap();
        assert!(page.split("<script").skip(1).all(|script| script.contains(" src=\"/console/")), "{page}");
    }
}
