//! Compiles `proto/` with protox, so that no protoc is needed, and passes on facts about the build.

use std::{env, fs, path::PathBuf, process::Command};

use prost::Message;
use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    build_facts()?;
    // The served schemas, which reflection shows.
    let served = protox::compile([SERVED], ["proto"])?;
    #[expect(
        clippy::disallowed_methods,
        reason = "cargo says where to write this way"
    )]
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), served.encode_to_vec())?;

    let all = protox::compile([&[SERVED], &ASKED_FOR[..]].concat(), ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(entries_as_bytes(all))?;
    Ok(())
}

/// Sets the constants of `src/foundation/build.rs`.
///
/// The commit comes from a variable only: a look into `.git` would build everything again with each commit, would find
/// a foreign repository around an unpacked archive, and would make equal sources differ.
#[expect(
    clippy::disallowed_methods,
    reason = "a build script gets its input this way"
)]
fn build_facts() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=TOLLGATE_COMMIT");
    let commit = env::var("TOLLGATE_COMMIT").unwrap_or_default();
    let hash = commit.strip_suffix("-dirty").unwrap_or(&commit);
    let is_hash = (7..=64).contains(&hash.len()) && hash.bytes().all(|c| c.is_ascii_hexdigit());
    if !commit.is_empty() && !is_hash {
        return Err(
            format!("TOLLGATE_COMMIT is not 7 to 64 hexadecimal digits: `{commit}`").into(),
        );
    }
    let profile = match profile()? {
        profile if profile == "release" => String::new(),
        profile => format!("profile {profile}: not for measuring"),
    };
    let known: Vec<&str> = [&*commit, &profile]
        .into_iter()
        .filter(|fact| !fact.is_empty())
        .collect();
    let suffix = match known.is_empty() {
        true => String::new(),
        false => format!(" ({})", known.join(", ")),
    };
    let rustc = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    let rustc = String::from_utf8(rustc.stdout)?;
    // `rustc 1.95.0 (…)`
    let rustc = rustc.split(' ').nth(1).unwrap_or("unknown").trim();
    // Without our prefix: `cargo run` sets these variables for the server too, which refuses unknown ones of ours.
    println!("cargo:rustc-env=BUILT_FROM_COMMIT={commit}");
    println!("cargo:rustc-env=BUILT_VERSION_SUFFIX={suffix}");
    println!("cargo:rustc-env=BUILT_BY_RUSTC={rustc}");
    Ok(())
}

/// The profile by its name, which cargo says only by the folder that it builds into: `…/PROFILE/build/PACKAGE/out`.
#[expect(
    clippy::disallowed_methods,
    reason = "a build script gets its input this way"
)]
fn profile() -> Result<String, env::VarError> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let folder = out.ancestors().nth(3).and_then(|folder| folder.file_name());
    Ok(folder.map_or_else(String::new, |name| name.to_string_lossy().into_owned()))
}

const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The schemas of the control plane's discovery service.
const ASKED_FOR: [&str; 2] = [
    "envoy/service/discovery/v3/discovery.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
];

/// The descriptors with `Entry.key` and `Entry.value` as `bytes`: equal on the wire, but the generated code then
/// accepts any header bytes instead of refusing invalid UTF-8.
fn entries_as_bytes(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut descriptors.file {
        for message in &mut file.message_type {
            for nested in &mut message.nested_type {
                if nested.name() == "Entry" {
                    for field in &mut nested.field {
                        field.set_type(Type::Bytes);
                    }
                }
            }
        }
    }
    descriptors
}
