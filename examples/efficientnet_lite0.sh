#!/bin/sh
# EfficientNet-Lite0 from check to report and ONNX: efficientnet_lite0.sh PHOTOS CLASS_INDEX OUT [N]
# PHOTOS: image files in one folder per ImageNet class. CLASS_INDEX: imagenet_class_index.json. N: samples per image.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
photos="imagefolder:$1" index=$2 out=$3 n=${4:-1000}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"

given="--from lite:lite0 --mean 0.5 --std 0.5"
smoothed="--from $out/smoothed --model lite:lite0"
heatsmooth check $given --data "$photos" --class-index "$index"
heatsmooth smooth $given --data "$photos" --class-index "$index" --sigma 0.25 --optimizer sgd --lr 0.001 \
    --batch-norm frozen --batch-size 32 --out "$out/smoothed"
heatsmooth certify $smoothed --data "$photos" --class-index "$index" --sigma 0.25 --images 100 --n "$n" \
    --out "$out/certified"
heatsmooth attack $smoothed --data "$photos" --class-index "$index" --images 100 --steps 20 --out "$out/attacked"
heatsmooth audit $smoothed --data "$photos" --class-index "$index" --sigma 0.25 --images 10 --n "$n" --steps 20 \
    --noise-samples 8 --out "$out/audited"
heatsmooth export $smoothed --sigma 0.25 --out "$out/lite0.onnx"
heatsmooth report "$out" --out "$out/report.html"
