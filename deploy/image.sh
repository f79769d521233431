#!/bin/sh
# The contents of the image, in a folder of their own: sh deploy/image.sh /opt/popgate
# FORM=compiled, the default, has the hot path as machine code and needs a C compiler and Python's headers; FORM=plain does not.
# The same checkout, Python, architecture and compiler make the same files, byte for byte.
set -eu
case $1 in
/*) target=$1 ;;
*) target=$PWD/$1 ;; # some steps run in another folder
esac
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
if [ -e "$target" ]; then
    echo "$target is there already: give a folder that is not" >&2
    exit 1
fi
case ${FORM:=compiled} in
compiled)
    compiler=$("$python" -c "import os, sysconfig; print((os.environ.get('CC') or sysconfig.get_config_var('CC')).split()[0])")
    if ! command -v "$compiler" >/dev/null; then
        echo "the compiled form needs $compiler: install it, or choose FORM=plain" >&2
        exit 1
    fi
    HATCH_BUILD_HOOK_ENABLE_CUSTOM=true
    export HATCH_BUILD_HOOK_ENABLE_CUSTOM
    ;;
plain) ;;
*)
    echo "FORM is $FORM, it may be compiled or plain" >&2
    exit 1
    ;;
esac
unfinished=
work=$(mktemp -d)
trap 'rm -rf "$work" ${unfinished:+"$unfinished"}' EXIT
# Not every shell does it where a signal ends it.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
# Times in archives, and the place of files that are made, would differ each time.
SOURCE_DATE_EPOCH=315532800
PIP_DISABLE_PIP_VERSION_CHECK=1
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --constraint "$source/deploy/constraints.txt" cyclonedx-bom
# As a variable: pip builds in an environment of its own, where options do not reach.
PIP_CONSTRAINT="$source/deploy/constraints.txt" \
    "$work/tools/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/wheel" "$source"

unfinished=$target # it would be in the way the next time, and may look whole
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
unfinished=
