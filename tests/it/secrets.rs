//! No password appears in output: neither of a start that fails nor of a server without a connection, at every level
//! of the log and on every page.

use tempfile::TempDir;

use crate::support::{
    ask::{ask, connect},
    finish, http,
    redis::Redis,
    sentinel::Watched,
    tollgate::{self, Builder},
    wait_until,
};

/// Part of every secret here.
const SECRET: &str = "sesame";

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limits: [1000/year]}
  - {key: s, rate_limits: [1000/second]}
";

/// A server with the most verbose output: panics, errors and log lines would show its state.
fn talkative() -> Builder {
    tollgate::with_rules(RULES)
        .args(["--log-level", "trace"])
        .env("RUST_BACKTRACE", "1")
}

/// All variables for secrets, each with one.
const VARIABLES: [(&str, &str); 10] = [
    ("REDIS_URL", "redis://u:sesame@127.0.0.1:1"),
    ("REDIS_AUTH", "sesame"),
    ("REDIS_SENTINEL_AUTH", "u:sesame"),
    ("REDIS_PERSECOND_URL", "redis://:sesame@127.0.0.1:1"),
    ("REDIS_PERSECOND_AUTH", "sesame"),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "sesame"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=sesame"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:sesame@127.0.0.1:1"),
    (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "http://u:sesame@127.0.0.1:1",
    ),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:sesame"),
];

fn with(variables: &[(&str, &str)]) -> Builder {
    let variables = variables.iter();
    variables.fold(talkative(), |builder, (name, value)| {
        builder.env(name, value)
    })
}

/// A start with these variables fails, and its error contains no secret.
#[track_caller]
fn check_fails(variables: &[(&str, &str)]) {
    let (_, text) = with(variables).fail();
    assert!(!text.contains(SECRET), "{variables:?}: {text}");
    assert!(!text.contains("panicked"), "{variables:?}: {text}");
    let whys = "tollgate cannot serve: |error: |invalid value|cannot be used with";
    let is_said = whys.split('|').any(|why| text.contains(why));
    assert!(is_said, "{variables:?}: {text}");
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_start_that_fails_does_not_say_with_which_password() {
    for url in [
        "redis://u:sesame@127.0.0.1:port",
        "redis://:sesame@[::1",
        "redis://:sesame@h:1/x",
        "redis://:sesame@h:1?protocol=sesame",
        "redis+sentinel://:sesame@a:1",
        "redis://:sesame@a:1,b:2/3",
        "http://:sesame@h",
        "sesame@h:1",
        "rediss://:sesame@h:1/%zz",
        "redis://h:1?password=sesame",
        "redis://h:1?password=x@sesame",
        "redis://:a@x,sesame@h:1",
        "redis://:sesame@h:1/#insecure",
        "redis://:p/sesame",
        "mymaster,redis://:sesame@127.0.0.1:26379",
        "unix://u:p@/sesame@x",
        "h:1,password=sesame",
    ] {
        check_fails(&[("REDIS_URL", url)]);
        let own = ("REDIS_PERSECOND_URL", url);
        check_fails(&[GOOD, ("REDIS_PERSECOND", "true"), own]);
    }
}

const GOOD: (&str, &str) = ("REDIS_URL", "redis://:sesame@127.0.0.1:1");

#[test]
fn neither_does_one_whose_files_or_other_settings_are_wrong() {
    let folder = TempDir::new().unwrap();
    let bad_url = write(&folder, "url", b"redis://:sesame@127.0.0.1:port\n");
    let not_text = write(&folder, "auth", b"sesame\xff");
    let bad_url = ("TOLLGATE_REDIS_URL_FILE", &*bad_url);
    check_fails(&[bad_url]);
    check_fails(&[GOOD, bad_url]);
    for name in [
        "TOLLGATE_REDIS_AUTH_FILE",
        "TOLLGATE_REDIS_SENTINEL_AUTH_FILE",
    ] {
        let url = ("REDIS_URL", "redis://127.0.0.1:1");
        check_fails(&[url, (name, &not_text)]);
    }
    for bad in [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization sesame"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://u:sesame@h"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:4318/sesame@h"),
    ] {
        check_fails(&[("TRACING_ENABLED", "true"), bad]);
    }
    // An error that is not about them.
    let mut all = VARIABLES.to_vec();
    all.push(("TOLLGATE_REDIS_TIMEOUT", "soon"));
    check_fails(&all);
}

#[test]
fn the_help_shows_no_value_of_a_variable_that_may_hold_one() {
    let mut command = tollgate::program();
    command.args(["serve", "--help"]).envs(VARIABLES);
    let output = finish(&mut command);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("OTEL_EXPORTER_OTLP_HEADERS"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

/// The output of a server after a few calls: all of its pages, its log and its errors to callers, once `is_settled`.
async fn said(builder: Builder, is_settled: impl Fn(&str) -> bool) -> String {
    let server = builder.start();
    let mut client = connect(server.grpc).await;
    let mut said = String::new();
    wait_until("it says what is wrong", || {
        is_settled(&http::get(server.http, "/healthcheck?verbose").body)
    });
    for _ in 0..5 {
        for key in ["k", "s"] {
            let reply = ask(&mut client, "d", &[(key, "v")]).await;
            said += &format!("{reply:?}\n");
        }
    }
    let paths = "/healthcheck?verbose / /stats /metrics /rlconfig /snapshot /top /rules /settings";
    for path in paths.split(' ') {
        for port in [server.http, server.debug] {
            said += &http::get(port, path).body;
        }
    }
    said + &server.log().text()
}

#[tokio::test]
async fn a_server_that_gets_nowhere_does_not_say_with_which_password() {
    let redis = Redis::with_password("open-sesame");
    let watched = Watched::with_passwords(Some("data-sesame"), Some("watch-sesame"));
    let (host, sentinels) = (redis.address(), watched.addresses());
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "auth", b"wrong-sesame\n");
    let refused = |page: &str| page.contains("WRONGPASS") || page.contains("NOAUTH");
    let away = |page: &str| page.contains("not reachable");
    let url = |user: &str, rest: &str| format!("redis://{user}{rest}");
    let of_sentinels = ["wrong", "data"]
        .map(|word| format!("redis+sentinel://:{word}-sesame@{sentinels}/mymaster"));
    let of_sentinels = of_sentinels
        .each_ref()
        .map(|url| ("REDIS_URL", url.as_str()));
    let plain = url("", &host);
    for variables in [
        &[
            ("REDIS_URL", &*url(":wrong-sesame@", &host)),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &plain),
            ("REDIS_PERSECOND_AUTH", "u:wrong-sesame"),
        ][..],
        &[("REDIS_URL", &plain), ("TOLLGATE_REDIS_AUTH_FILE", &file)],
        &[of_sentinels[0], ("REDIS_SENTINEL_AUTH", "watch-sesame")],
        &[of_sentinels[1], ("REDIS_SENTINEL_AUTH", "u:wrong-sesame")],
        // With characters that end a password elsewhere, which are followed by a host that is none.
        &[("REDIS_URL", &url("default:1234%3F5%2Fsesame@", &host))],
    ] {
        let said = said(with(variables), refused).await;
        assert!(!said.contains(SECRET), "{said}");
    }
    let socket = "unix:///nowhere/x?user=u&pass=p@/sesame";
    for gone in [socket, "redis://u:wrong-sesame@nowhere.invalid:1"] {
        let said = said(with(&[("REDIS_URL", gone)]), away).await;
        assert!(!said.contains(SECRET), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_works_does_not_say_by_which_password() {
    let watched = Watched::with_passwords(Some("data-sesame"), Some("watch-sesame"));
    let redis = Redis::with_password("open-sesame");
    let url = watched.url().replace("://", "://:data-sesame@");
    let per_second = format!("redis://:open-sesame@{}", redis.address());
    let of_traces = VARIABLES
        .iter()
        .filter(|(name, _)| name.starts_with("OTEL_"));
    let builder = with(&of_traces.copied().collect::<Vec<_>>())
        .env("REDIS_URL", &url)
        .args(["--redis-sentinel-auth", "watch-sesame"])
        .args(["--redis-timeout", "10s"])
        .env("TRACING_ENABLED", "true")
        .env("REDIS_PERSECOND", "true")
        .env("REDIS_PERSECOND_URL", &per_second);
    let said = said(builder, |page| {
        page.lines().filter(|line| line.ends_with(": ok")).count() >= 2
    })
    .await;
    assert!(said.contains("OK") || said.contains("Ok"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
}
