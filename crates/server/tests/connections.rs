//! The rules of HTTP/1 over real sockets: what keeps a connection, what ends it, and who is noticed to be gone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::Write as _;
use std::net::Shutdown;
use std::time::Duration;

use baton_server::{Settings, Testing, testing, testing_with};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(8);

async fn connect(server: &Testing) -> TcpStream {
    TcpStream::connect(server.url().strip_prefix("http://").unwrap()).await.unwrap()
}

/// All that comes back until the server closes.
async fn exchange(server: &Testing, request: &str) -> String {
    let mut stream = connect(server).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    rest(&mut stream).await
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
    read.await.expect("the server closes the connection").unwrap();
    String::from_utf8(answer).unwrap()
}

/// One answer: its head and its body.
async fn next(stream: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn statuses(answer: &str) -> Vec<&str> {
    answer.split("HTTP/1.").skip(1).map(|part| part.split(' ').nth(1).unwrap()).collect()
}

async fn waiters(server: &Testing) -> Value {
    let answer = exchange(server, "GET /health HTTP/1.0\r\n\r\n").await;
    serde_json::from_str::<Value>(answer.split_once("\r\n\r\n").unwrap().1).unwrap()["popWait"]["waiters"]
        .clone()
}

async fn until_waiters(server: &Testing, count: u64) {
    let reached = async {
        while waiters(server).await != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("the number of parked pops is reached");
}

const POP: &str = "GET /api/v1/pop/queue/q?wait=true&timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[tokio::test]
async fn what_could_be_understood_in_two_ways_is_refused_and_ends_the_connection() {
    let server = testing().await.unwrap();
    let post = |headers: &str, body: &str| {
        format!("POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}")
    };
    let smuggled = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (request, status, code) in [
        (post("Content-Length: 5\r\nContent-Length: 6", smuggled), "400", "bad_request"),
        (post("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400", "bad_request"),
        (post("Transfer-Encoding: gzip", smuggled), "400", "bad_request"),
        (post("Transfer-Encoding: chunked", "zz\r\n"), "400", "bad_request"),
        ("GET / HTTP/2.0\r\n\r\n".into(), "505", "unknown_version"),
        ("nonsense\r\n\r\n".into(), "400", "bad_request"),
        (
            format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(101)),
            "431",
            "head_too_large",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: localhost\r\na: {}\r\n\r\n", "x".repeat(70_000)),
            "431",
            "head_too_large",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70_000)),
            "414",
            "target_too_long",
        ),
    ] {
        let answer = exchange(&server, &request).await;
        assert_eq!(statuses(&answer), [status], "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("connection: close") && !head.contains("access-control"), "{head}");
        assert_eq!(serde_json::from_str::<Value>(body).unwrap()["code"], code, "{body}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_names_its_host_once() {
    let server = testing().await.unwrap();
    let lines = |version: &str, hosts: &str| {
        format!("GET /health HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n")
    };
    for (version, hosts, status) in [
        ("1.1", "", "400"),
        ("1.1", "Host: localhost\r\nHost: localhost\r\n", "400"),
        ("1.1", "Host: localhost/x\r\n", "400"),
        ("1.1", "Host: localhost, localhost\r\n", "400"),
        ("1.1", "Host: a@localhost\r\n", "400"),
        ("1.1", "Host: localhost:x\r\n", "400"),
        ("1.0", "Host: local host\r\n", "400"),
        ("1.0", "", "200"),
        ("1.1", "Host: LOCALHOST:1\r\n", "200"),
        ("1.1", "Host: [::1]:6632\r\n", "200"),
    ] {
        assert_eq!(
            statuses(&exchange(&server, &lines(version, hosts)).await),
            [status],
            "{version} {hosts:?}"
        );
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_connection_is_kept_by_the_rules_of_its_version() {
    let server = testing().await.unwrap();
    let end = "GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer =
        exchange(&server, &format!("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n{end}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    assert_eq!(statuses(&answer), ["200", "404"]);
    assert_eq!(statuses(&exchange(&server, &format!("GET /health HTTP/1.0\r\n\r\n{end}")).await), ["200"]);
    let kept = format!("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n{end}");
    let answer = exchange(&server, &kept).await;
    assert_eq!(statuses(&answer), ["200", "404"]);
    assert!(answer.contains("connection: keep-alive"), "{answer}");
    let whole_url = "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(statuses(&exchange(&server, whole_url).await), ["200"]);
    let refused = format!("POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello{end}");
    assert_eq!(statuses(&exchange(&server, &refused).await), ["404", "404"]);
    let chunked = format!(
        "PUT /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{end}"
    );
    assert_eq!(statuses(&exchange(&server, &chunked).await), ["405", "404"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_head_request_is_answered_without_a_body() {
    let server = testing().await.unwrap();
    let answer =
        exchange(&server, "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(answer.contains("content-length: ") && !answer.contains("content-length: 0"), "{answer}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn requests_in_any_pieces_are_answered_in_order() {
    let server = testing().await.unwrap();
    let push = |headers: &str, body: &str| {
        format!("POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}")
    };
    let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
    let requests = [
        push(&format!("Content-Length: {}", body.len()), body),
        push("Transfer-Encoding: chunked", &format!("{:x};a=b\r\n{body}\r\n0\r\nT: v\r\n\r\n", body.len())),
        "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n".into(),
        "GET /api/v1/pop/queue/q?batch=9 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".into(),
    ]
    .concat();
    for size in [1, 7, 100, requests.len()] {
        let mut stream = connect(&server).await;
        stream.set_nodelay(true).unwrap();
        for piece in requests.as_bytes().chunks(size) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let answer = rest(&mut stream).await;
        let expected = if size == 1 { "200" } else { "204" };
        assert_eq!(statuses(&answer)[..3], ["201", "201", "404"], "{answer}");
        // The first round's lease keeps the partition from the others.
        assert_eq!(statuses(&answer)[3], expected, "{answer}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_body_is_asked_for_only_when_it_is_wanted() {
    let server = testing().await.unwrap();
    let head = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut stream = connect(&server).await;
    stream.write_all(head("/api/v1/push", 12).as_bytes()).await.unwrap();
    assert_eq!(next(&mut stream).await.0, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(br#"{"items":[]}"#).await.unwrap();
    assert_eq!(next(&mut stream).await.1, "[]");

    stream.write_all(head("/none", 12).as_bytes()).await.unwrap();
    let answer = next(&mut stream).await.0;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("connection: close"), "{answer}");
    let mut stream = connect(&server).await;
    stream.write_all(head("/api/v1/push", usize::MAX).as_bytes()).await.unwrap();
    assert!(next(&mut stream).await.0.starts_with("HTTP/1.1 413 "));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_refused_body_is_not_waited_for() {
    let mut settings = Settings { listen: "127.0.0.1:0".into(), ..Settings::default() };
    settings.set("test", "jwt_enabled", "true").unwrap();
    settings.set("test", "jwt_secret", &"x".repeat(32)).unwrap();
    let (open, guarded) = (testing().await.unwrap(), testing_with(&settings).await.unwrap());
    for (server, path, length, status) in [
        (&guarded, "/api/v1/push", 60 << 20, "401"),
        (&open, "/none", 60 << 20, "404"),
        (&open, "/api/v1/push", usize::MAX, "413"),
    ] {
        for framing in [format!("Content-Length: {length}"), "Transfer-Encoding: chunked".into()] {
            if status == "413" && framing.starts_with('T') {
                continue;
            }
            for expect in ["", "Expect: 100-continue\r\n"] {
                let mut stream = connect(server).await;
                let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{expect}{framing}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                let answer = tokio::time::timeout(Duration::from_secs(3), rest(&mut stream));
                let answer = answer.await.expect("the answer does not wait for the body");
                assert_eq!(statuses(&answer), [status], "{answer}");
                assert!(answer.contains("connection: close"), "{answer}");
            }
        }
    }
    // A peer that sends first and reads then still finds the answer.
    let mut stream = connect(&guarded).await;
    let body = "x".repeat(512 << 10);
    let head =
        format!("POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(statuses(&rest(&mut stream).await), ["401"]);
    guarded.stop().await.unwrap();
    open.stop().await.unwrap();
}

#[tokio::test]
async fn a_parked_pop_ends_with_its_caller() {
    let server = testing().await.unwrap();
    let mut closing = connect(&server).await;
    let mut half_closing = connect(&server).await;
    let mut resetting = connect(&server).await;
    for stream in [&mut closing, &mut half_closing, &mut resetting] {
        stream.write_all(POP.as_bytes()).await.unwrap();
    }
    until_waiters(&server, 3).await;
    drop(closing);
    until_waiters(&server, 2).await;
    half_closing.shutdown().await.unwrap();
    until_waiters(&server, 1).await;
    assert_eq!(rest(&mut half_closing).await, "");
    resetting.set_zero_linger().unwrap();
    drop(resetting);
    until_waiters(&server, 0).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_parked_pop_ends_with_its_caller_also_behind_pipelined_bytes() {
    let server = testing().await.unwrap();
    let behind = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // Before the pop is parked, and after.
    let mut early = connect(&server).await;
    early.write_all([POP, behind].concat().as_bytes()).await.unwrap();
    until_waiters(&server, 1).await;
    drop(early);
    until_waiters(&server, 0).await;
    let mut late = connect(&server).await;
    late.write_all(POP.as_bytes()).await.unwrap();
    until_waiters(&server, 1).await;
    late.write_all(behind.as_bytes()).await.unwrap();
    late.write_all(behind.as_bytes()).await.unwrap();
    drop(late);
    until_waiters(&server, 0).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_is_not_leased_to_a_peer_that_closed_behind_many_pipelined_bytes() {
    let server = testing().await.unwrap();
    let mut leaving = connect(&server).await;
    // More than the server buffers, and less than the kernel does: it sees the end only once all before it was sent.
    let large = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2_500);
    leaving.write_all(POP.as_bytes()).await.unwrap();
    until_waiters(&server, 1).await;
    leaving.write_all(large.as_bytes()).await.unwrap();
    drop(leaving);
    baton_env::sleep(Duration::from_millis(200)).await;
    let body = r#"{"items":[{"queue":"q","payload":7}]}"#;
    let push = format!("POST /api/v1/push HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(statuses(&exchange(&server, &push).await), ["201"]);
    let pop = "GET /api/v1/pop/queue/q?wait=true&timeout=5000 HTTP/1.0\r\n\r\n";
    assert_eq!(statuses(&exchange(&server, pop).await), ["200"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_sent_during_a_parked_pop_is_answered_after_it() {
    let server = testing().await.unwrap();
    let mut stream = connect(&server).await;
    stream.write_all(POP.as_bytes()).await.unwrap();
    until_waiters(&server, 1).await;
    stream.write_all(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
    let push = format!("POST /api/v1/push HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(statuses(&exchange(&server, &push).await), ["201"]);
    assert!(next(&mut stream).await.0.starts_with("HTTP/1.1 200 "));
    assert!(next(&mut stream).await.0.starts_with("HTTP/1.1 404 "));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_answer_does_not_wait_for_one_that_has_to() {
    let server = testing().await.unwrap();
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for behind in
        [POP, "GET /hea", "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n["]
    {
        let mut stream = connect(&server).await;
        stream.write_all([health, behind].concat().as_bytes()).await.unwrap();
        assert_eq!(statuses(&next(&mut stream).await.0), ["200"], "{behind}");
    }
    // All of it has come, and the end as well, before the server looks.
    let mut leaving = std::net::TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
    leaving.write_all([health, "GET /hea"].concat().as_bytes()).unwrap();
    leaving.shutdown(Shutdown::Write).unwrap();
    leaving.set_nonblocking(true).unwrap();
    assert_eq!(statuses(&rest(&mut TcpStream::from_std(leaving).unwrap()).await), ["200"]);
    let mut stream = connect(&server).await;
    stream.write_all([health, health, POP, health].concat().as_bytes()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(statuses(&next(&mut stream).await.0), ["200"]);
    }
    until_waiters(&server, 1).await;
    let body = r#"{"items":[{"queue":"q","payload":7}]}"#;
    let push = format!("POST /api/v1/push HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(statuses(&exchange(&server, &push).await), ["201"]);
    let (head, popped) = next(&mut stream).await;
    assert!(statuses(&head) == ["200"] && popped.contains("\"data\":7"), "{popped}");
    assert_eq!(statuses(&next(&mut stream).await.0), ["200"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_large_body_goes_in_and_a_large_answer_comes_out_whole() {
    let server = testing().await.unwrap();
    let payload = "x".repeat(3 << 20);
    let body = format!(r#"{{"items":[{{"queue":"q","payload":"{payload}"}}]}}"#);
    let mut stream = connect(&server).await;
    let head =
        format!("POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    assert!(next(&mut stream).await.0.starts_with("HTTP/1.1 201 "));
    stream.write_all(b"GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let popped: Value = serde_json::from_str(&next(&mut stream).await.1).unwrap();
    assert_eq!(popped["messages"][0]["data"], payload);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn stopping_closes_idle_connections_at_once() {
    let server = testing().await.unwrap();
    let mut idle = connect(&server).await;
    idle.write_all(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    next(&mut idle).await;
    let unused = connect(&server).await;
    tokio::time::timeout(PATIENCE, server.stop()).await.expect("idle connections hold nothing up").unwrap();
    assert_eq!(rest(&mut idle).await, "");
    drop(unused);
}
