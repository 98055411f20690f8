//! The image.

use std::fs;

use super::deploy;

#[test]
fn the_image_holds_one_program_and_no_root() {
    let text = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    let (_, stage) = text.rsplit_once("\nFROM ").expect("a last stage");
    assert!(stage.starts_with("scratch\n"), "{stage}");
    let of = |instruction: &str| {
        let mut lines = stage.lines();
        let found = lines.find_map(|line| line.strip_prefix(instruction));
        found.expect(instruction).trim().to_owned()
    };
    let user = of("USER ");
    let (user, group) = user.split_once(':').expect("a user and a group");
    for id in [user, group] {
        assert!(id.parse::<u32>().is_ok_and(|id| id > 0), "{id}");
    }
    assert_eq!(of("ENTRYPOINT "), r#"["/bin/tollgate"]"#);
    assert_eq!(of("EXPOSE "), "8080 8081 6070");
    // It refuses a program that needs a library of the system.
    assert!(text.contains("deploy/packaging/build.py \"$TARGETARCH\""));
    assert!(text.contains("ln -s tollgate /image/bin/ratelimit"));
}
