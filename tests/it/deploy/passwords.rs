//! The user and the password of each Redis that the files start, and the Secrets of the chart.

use std::{collections::BTreeSet, fs};

use tempfile::TempDir;

use super::{
    path,
    running::{Bundled, builder, extracted, redis_arguments},
};
use crate::cli::{run, url};
use crate::support::{certificates::Authority, redis::Redis, tollgate};
use crate::unhelpful_servers::{check_user, documented_users, set};

#[test]
fn every_redis_lets_in_one_user_with_the_documented_commands() {
    let folder = TempDir::new().unwrap();
    let auth = folder.path().join("auth");
    fs::write(&auth, "tollgate:a 'b' \"c\" $d #e\n").unwrap();
    let servers = extracted()["redis"].as_object().unwrap();
    assert!(servers.len() >= 7, "{servers:?}");
    let commands = servers.values();
    let arguments = commands.map(|command| redis_arguments(command, &auth).unwrap());
    let different: BTreeSet<_> = arguments.collect();
    let mut all = different.into_iter();
    let arguments = all.next().unwrap();
    assert_eq!(all.next(), None, "another one");
    // Of the password as it is, whatever a shell would make of its marks.
    let hash = "#003d6cbe8d191bb4f7f46aa9033afeb6ff6eb501a591cc072d0a678cf95f2886";
    let [user, ..] = documented_users();
    let (_, documented) = user.split_at(5);
    let given = arguments.iter().position(|word| word == "tollgate");
    let given = given.unwrap();
    let before = ["--user", "default", "off", "--user"];
    assert_eq!(arguments[given - 4..given], before);
    assert_eq!(arguments[given + 1..given + 3], ["on", hash]);
    assert_eq!(arguments[given + 3..], *documented);

    // The third is what is left where a program that makes passwords is missing.
    for wrong in ["a password alone", "", "tollgate:", "other:open"] {
        fs::write(&auth, wrong).unwrap();
        for (name, command) in servers {
            let said = redis_arguments(command, &auth).unwrap_err();
            assert!(said.contains("tollgate:PASSWORD"), "{name}: {said}");
        }
    }
}

#[tokio::test]
async fn all_of_tollgate_works_as_the_user_of_the_manifests_and_nothing_else_does() {
    let redis = Bundled::start();
    assert_eq!(redis.cli(&["PING"]), "PONG");
    const REFUSED: &str = "FLUSHALL, FLUSHDB, KEYS *, CONFIG GET requirepass, CONFIG SET dir /, ACL LIST, SHUTDOWN, \
        SWAPDB 0 1, MONITOR, SAVE, REPLICAOF 127.0.0.1 1, MODULE LIST, CLIENT LIST, INFO, DBSIZE, SCRIPT FLUSH, \
        FUNCTION LIST, DUMP a, RESTORE a 0 a, MIGRATE 127.0.0.1 1 a 0 1, SUBSCRIBE a, GETSET a b, CLUSTER NODES";
    for command in REFUSED.split(", ") {
        let words: Vec<_> = command.split(' ').collect();
        let said = redis.cli(&words);
        assert!(said.contains("NOPERM"), "{command}: {said}");
        let said = redis.cli_of_strangers(&words);
        assert!(said.contains("NOAUTH"), "{command}: {said}");
    }
    let (url, auth) = redis.address();
    let builder = tollgate::with_rules("domain: d")
        .env("REDIS_URL", &url)
        .env("TOLLGATE_REDIS_AUTH_FILE", path(auth));
    check_user(builder, &[]).await;
}

/// Each Secret of the chart's preset `full`, with a Redis that wants a client certificate, a password and its own authority.
#[test]
fn the_chart_finds_what_its_secrets_hold() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| path(&folder.path().join(name)).to_owned();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let ours = Authority::new("ours");
    let of_redis = ours.issue("localhost");
    write("ca", &ours.certificate);
    write("cert", &of_redis.certificate);
    write("key", &of_redis.key);
    for secret in ["redis-tls", "tls"] {
        let pair = ours.issue("tollgate");
        write(&format!("{secret}/ca.crt"), &ours.certificate);
        write(&format!("{secret}/tls.crt"), &pair.certificate);
        write(&format!("{secret}/tls.key"), &pair.key);
    }
    write("redis/user-and-password", "tollgate:open");
    write("admin/token", "a long token");
    let redis = Redis::with_tls(folder.path(), true);
    set(&documented_users()[0], &redis);

    let mut manifest = extracted()["chart"].clone();
    let env = manifest["env"].as_object_mut().unwrap();
    // A file of `extraVolumes`, which is for sentinels.
    let file = env.remove("TOLLGATE_REDIS_SENTINEL_AUTH_FILE").unwrap();
    assert_eq!(file, "/etc/sentinels/auth");
    for value in env.values_mut() {
        if let Some(name) = value.as_str().unwrap().strip_prefix("/etc/tollgate/") {
            *value = at(name).into();
        }
    }
    env.insert("LOG_LEVEL".to_owned(), "info".into());
    let address = format!("localhost:{}", redis.tls_port());
    let auth = folder.path().join("redis/user-and-password");
    let tollgate = builder(&manifest, Some((address, &auth))).start();

    let [ca, certificate, key] =
        ["ca.crt", "tls.crt", "tls.key"].map(|name| at(&format!("tls/{name}")));
    let of = "--domain shop -d remote_address=192.0.2.1";
    let (_, first) = run(&format!(
        "ask --server https://{} --authority tollgate --ca {ca} --cert {certificate} --key {key} {of}",
        tollgate.grpc
    ));
    assert!(first.starts_with("OK\n"), "{first}");
    assert_ne!(redis.cli(&["DBSIZE"]).trim(), "0");
    let reset = format!("counters reset --server {} {of}", url(tollgate.debug));
    assert_ne!(run(&reset).0, Some(0), "it needs the token");
    let (code, said) = run(&format!("{reset} --token-file {}", at("admin/token")));
    assert_eq!(code, Some(0), "{said}");
}
