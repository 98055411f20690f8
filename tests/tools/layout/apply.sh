#!/usr/bin/env bash
# Usage: apply.sh TREE. Turns a checkout of tollgate's main into the new layout with the new names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$1" && pwd)
python3 "$here/layout.py" "$tree"
cp "$here/lib.rs" "$tree/src/lib.rs"
for step in patches renames; do
    if [ -f "$here/$step.py" ]; then python3 "$here/$step.py" "$tree"; fi
done
cd "$tree"
cargo fmt
python3 "$here/files.py" "$tree"
cargo fmt
