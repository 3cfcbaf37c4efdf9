//! A server on either store, and which of its routes were called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use baton_queue::Broker;
use baton_server::{Options, Server, Settings};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

pub struct Bench {
    address: String,
    store: Arc<dyn Store>,
    /// Methods and paths that were called with success.
    called: Mutex<BTreeSet<(String, String)>>,
    /// The last refusal of each other one.
    refused: Mutex<BTreeMap<(String, String), String>>,
    _stop: DropGuard,
    _directory: Option<tempfile::TempDir>,
}

impl Bench {
    pub async fn embedded() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        Self::start(Arc::new(EmbeddedStore::open(options).unwrap()), Some(directory)).await
    }

    pub async fn postgres() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let store = PostgresStore::open(baton_store_postgres::Options::new(url)).await.unwrap();
        Self::start(Arc::new(store), None).await
    }

    async fn start(store: Arc<dyn Store>, directory: Option<tempfile::TempDir>) -> Self {
        let settings = Settings { listen: "127.0.0.1:0".into(), min_free_disk: 0, ..Settings::default() };
        let broker = Broker::start(Arc::clone(&store), settings.broker());
        let server = Server::bind(Options::from(&settings), broker).await.unwrap();
        let (address, stop) = (server.local_addr().to_string(), CancellationToken::new());
        tokio::spawn(server.run(stop.clone()));
        Self {
            address,
            store,
            called: Mutex::default(),
            refused: Mutex::default(),
            _stop: stop.drop_guard(),
            _directory: directory,
        }
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // It may be refused before it is read to its end.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status =
            head.split(' ').nth(1).unwrap_or_else(|| panic!("{method} {path} was not answered")).parse();
        (status.unwrap(), serde_json::from_str(text).unwrap_or_default())
    }

    /// Calls, and checks that the server did not fail and the store has undone nothing.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(method, path, body).await;
        let shown = body.to_string().chars().take(300).collect::<String>();
        let shown = format!("{method} {path} {shown}: {status} {answer}");
        self.check_store(&shown);
        assert!(status < 500, "{shown}");
        let route = (method.to_owned(), path.split('?').next().unwrap_or(path).to_owned());
        if status < 300 {
            self.called.lock().unwrap().insert(route);
        } else {
            self.refused.lock().unwrap().insert(route, format!("{status} {answer}"));
        }
        answer
    }

    pub fn check_store(&self, shown: &str) {
        assert_eq!((self.store.failure(), self.store.outage()), (None, None), "{shown}");
        assert_eq!(self.store.statistics().undone, 0, "{shown}");
    }

    /// Checks that every route that takes a body, deletes or pops was called with success.
    pub async fn check_routes(&self) {
        let (_, document) = self.ask("GET", "/api/openapi.json", &Value::Null).await;
        let templates: Vec<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        // A path without open segments stands before one that would also match it.
        let template_of = |(method, path): &(String, String)| {
            let fits =
                templates.iter().filter(|(asked, template)| asked == method && matches(template, path));
            fits.min_by_key(|(_, template)| template.matches('{').count())
        };
        let reached: BTreeSet<_> = self.called.lock().unwrap().iter().filter_map(template_of).collect();
        let refused = self.refused.lock().unwrap();
        let refusal = |route: &(String, String)| {
            let refusals = refused.iter().filter(|(called, _)| template_of(called) == Some(route));
            refusals.map(|(_, answer)| answer.chars().take(200).collect::<String>()).next()
        };
        let writes = |(method, path): &&(String, String)| method != "GET" || path.starts_with("/api/v1/pop");
        let missing: Vec<_> = templates
            .iter()
            .filter(writes)
            .filter(|route| !reached.contains(route))
            .map(|route| (route, refusal(route)))
            .collect();
        assert!(missing.is_empty(), "routes that no case calls with success: {missing:#?}");
    }
}

fn matches(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    let fits =
        |(wanted, given): (&&str, &&str)| wanted == given || wanted.starts_with('{') && !given.is_empty();
    template.len() == path.len() && template.iter().zip(&path).all(fits)
}
