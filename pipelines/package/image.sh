#!/bin/sh
# Puts the program, its libraries and its model where the Dockerfile's stage `built` takes them from, so that an image can be
# built of a program that is there:
#     pipelines/package/image.sh [PROGRAM]
#     docker build --build-arg PROGRAM=built -f pipelines/package/Dockerfile -t turnflow .
# The program must have been linked to the libraries of Debian 12 or older ones. By default, it is that of the release profile.
set -eu
cd "$(dirname "$0")/../.."
program="${1:-${CARGO_TARGET_DIR:-target}/release/turnflow}"
image="target/package/image"
"$program" models fetch onnxruntime pdfium ocr minilm-int8
rm -rf "$image"
mkdir -p "$image/minilm-int8"
cp "$program" "$image/turnflow"
strip "$image/turnflow"
cp models/onnxruntime/libonnxruntime.so models/pdfium/libpdfium.so "$image/"
cp -R models/ocr "$image/"
cp models/minilm-int8/model.onnx models/minilm-int8/tokenizer.json "$image/minilm-int8/"
