//! Tables in `docs/` that programs write.

use std::{fs, path::Path};

/// Puts the table between the two markers of a page.
pub fn replace(path: &Path, table: &str) {
    const BEGIN: &str = "<!-- table -->\n";
    const END: &str = "<!-- end of table -->";
    let page = fs::read_to_string(path).unwrap();
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("a mark where the table begins");
    let (_, after) = rest.split_once(END).expect("a mark where the table ends");
    fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
}
