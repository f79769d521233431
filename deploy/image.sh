#!/bin/sh
# The contents of the image, in a folder of their own: sh deploy/image.sh /opt/popgate
# The same checkout, Python and architecture make the same files, byte for byte.
set -eu
target=$1
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
if [ -e "$target" ]; then
    echo "$target is there already: give a folder that is not" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Times in archives, and the place of files that are made, would differ each time.
SOURCE_DATE_EPOCH=315532800
PIP_DISABLE_PIP_VERSION_CHECK=1
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --constraint "$source/deploy/constraints.txt" build hatchling cyclonedx-bom
"$work/tools/bin/python" -m build --wheel --no-isolation --outdir "$work/wheel" "$source" >/dev/null

"$python" -m venv --without-pip "$target"
wheel=$(echo "$work"/wheel/popgate-*.whl)
cp "$wheel" "$work/"
(
    # By a relative name: pip writes into the environment where it had the file from.
    cd "$work"
    "$work/tools/bin/pip" --python "$target/bin/python" install --quiet --no-compile \
        --constraint "$source/deploy/constraints.txt" "./$(basename "$wheel")[fast,tracing]"
)
# Where the wheel was, which is another folder each time.
rm -f "$target"/lib/python3.*/site-packages/popgate-*.dist-info/direct_url.json
sed -i '/direct_url\.json,/d' "$target"/lib/python3.*/site-packages/popgate-*.dist-info/RECORD
# Compiled here, since nothing can be written there; by content, so that the times of files do not matter.
"$target/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$target/lib"
"$work/tools/bin/cyclonedx-py" environment --output-reproducible --of JSON -o "$target/sbom.cdx.json" "$target/bin/python"
