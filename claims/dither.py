"""The claims of dithered and nested dithered quantization."""

from __future__ import annotations

from pathlib import Path

from reproduce.page import table

from . import recordings
from .bench import Bench
from .charts import Panel, draw
from .claim import (
    AUTHORS,
    BATCHES,
    FAILS,
    HOLDS,
    IN_PART,
    LONG,
    ON_RECORDED,
    RESNET9,
    Claim,
    Shown,
    percent,
    recorded,
    untrained,
)
from .recordings import Json

QUANTIZERS = {"dqsg": "dqsg:collective=gather,levels=7", "qsgd": "qsgd:collective=gather,bits=4"}


def measure_dither(bench: Bench) -> Json:
    recording = bench.record("resnet9", RESNET9)
    return {
        name: bench.analyse(recordings.rounding_errors, recording, spec, 6)
        for name, spec in QUANTIZERS.items()
    }  # fmt: skip


def show_dither(found: Json, folder: Path) -> Shown:
    places = [(low + high) / 2 for low, high in zip(recordings.BINS, recordings.BINS[1:])]
    panel = Panel("error by the size of the element", "|w| in steps of dqsg", "variance / variance of all errors", {}, "log")  # fmt: skip
    for name, one in found.items():
        panel.lines[name] = (places, [b["variance"] / one["variance"] for b in one["bins"]])
    draw(folder / "dqsg-error.svg", panel)
    dqsg, qsgd = found["dqsg"], found["qsgd"]
    critical = 1.36 / dqsg["elements"] ** 0.5
    noise = 3 / dqsg["elements"] ** 0.5
    spread = {
        name: [b["variance"] / one["variance"] for b in one["bins"]] for name, one in found.items()
    }
    lines = [
        ["largest error, in steps κ", "0.5", f"{dqsg['largest']:.5f}", ""],
        ["variance of the error, in κ²", "1/12 = 0.08333", f"{dqsg['variance']:.5f}", ""],
        ["Kolmogorov-Smirnov distance to the uniform distribution", f"below {critical:.5f} (5 %)", f"{dqsg['ks']:.5f}", ""],
        ["correlation of error and element", f"0 ± {noise:.4f}", f"{dqsg['correlation']:.5f}", f"{qsgd['correlation']:.5f}"],
        ["correlation of their sizes", f"0 ± {noise:.4f}", f"{dqsg['size_correlation']:.5f}", f"{qsgd['size_correlation']:.5f}"],
        ["variance by the size of the element / variance of all", "1", *(f"{min(s):.2f} to {max(s):.2f}" for s in spread.values())],
    ]  # fmt: skip
    text = f"""
The errors of {dqsg["elements"]:,} elements: 6 recorded steps of `resnet9`, rank 0, layers of at least {recordings.SMALLEST:,} elements, through the Python codec (`thinreduce.codec`).

{table(["", "expected", "`dqsg`", "`qsgd:bits=4`, for comparison"], lines)}
"""
    holds = (
        dqsg["largest"] < 0.501 and dqsg["ks"] < critical and abs(dqsg["correlation"]) < noise
    ) and abs(dqsg["size_correlation"]) < noise
    figure = f"largest error {dqsg['largest']:.4f} κ, KS {dqsg['ks']:.5f} (5 % bound {critical:.5f}), correlation with the element {dqsg['correlation']:.5f}, of the sizes {dqsg['size_correlation']:.5f} (qsgd {qsgd['size_correlation']:.2f})"
    return Shown(HOLDS if holds else IN_PART, figure, text, ("dqsg-error.svg",))


WORKERS = (2, 4, 8, 16)
NESTED = {
    "dqsg": "dqsg:levels=7,block=layer,collective=gather",
    "nested as in the paper": "ndqsg:preset=paper",
    "nested, no failures": "ndqsg:block=layer,collective=gather,entropy=off",
}


def measure_nested(bench: Bench) -> Json:
    batches: Json = {}
    for batch in BATCHES:
        arguments = f"{AUTHORS} --ranks 4 --batch {batch} --steps 200 --save-every 20"
        recording = bench.record(f"fc-{batch}", arguments)
        specs = [
            f"{method},block=layer,entropy={entropy}"
            for entropy in ("off", "on")
            for method in ("dqsg:levels=7,collective=gather", "ndqsg:collective=gather")
        ]
        runs = bench.codec(recording, *specs)
        batches[str(batch)] = {
            "correlation": bench.analyse(recordings.correlation, recording),
            "bytes": [one["wire_bytes"] for one in runs],
            "nmse": [one["nmse"] for one in runs],
        }  # fmt: skip
    resnet9 = bench.record("resnet9", RESNET9)
    trained = {
        f"{name}, {workers}": bench.train(
            spec, *AUTHORS.split(), "--ranks", str(workers), "--batch", str(200 // workers),
            "--epochs", "2", "--evaluate-every", "1000000",
        )
        for workers in WORKERS for name, spec in NESTED.items()
    }  # fmt: skip
    return {
        "batches": batches,
        "resnet9": bench.analyse(recordings.correlation, resnet9),
        "trained": {
            key: {"accuracy": one["accuracy"], "statistics": one["statistics"]}
            for key, one in trained.items()
        },
    }


def show_nested(found: Json, folder: Path) -> Shown:
    panel = Panel("correlation of two ranks' gradients", "step", "correlation")
    lines = []
    for batch, one in found["batches"].items():
        steps = one["correlation"]
        panel.lines[f"{batch} images per rank"] = ([s["step"] for s in steps], [s["pair"] for s in steps])  # fmt: skip
        fixed, nested, coded, nested_coded = one["bytes"]
        pairs = [s["pair"] for s in steps]
        lines.append([batch, f"{min(pairs):.2f} to {max(pairs):.2f}", f"{fixed:,.0f}, {nested:,.0f} ({100 * (nested / fixed - 1):+.1f} %)", f"{coded:,.0f}, {nested_coded:,.0f} ({100 * (nested_coded / coded - 1):+.1f} %)"])  # fmt: skip
    panel.lines["resnet9, 32 per rank"] = ([s["step"] for s in found["resnet9"]], [s["pair"] for s in found["resnet9"]])  # fmt: skip
    draw(folder / "ndqsg-correlation.svg", panel)
    trained = found["trained"]
    rows = []
    for workers in WORKERS:
        cells = [percent(trained[f"{name}, {workers}"]["accuracy"], 2) for name in NESTED]
        for name in list(NESTED)[1:]:
            statistics = trained[f"{name}, {workers}"]["statistics"]
            cells.append(f"{percent(statistics.get('nested_fraction', 0), 1)}, {percent(statistics.get('decode_failures', 0), 2)}")  # fmt: skip
        rows.append([str(workers), *cells])
    text = f"""
`fc-300-100` as the authors trained it (plain gradient descent, rate 0.01, one scale per layer), 4 ranks, 200 steps, recorded every 20.
Bytes per rank and step, `dqsg` with 7 symbols and `ndqsg` with the same error (no value decoded wrongly): means over the ranks, half of which nest.

{table(["images per rank", "correlation of two ranks", "fixed length: dqsg, ndqsg", "entropy coded: dqsg, ndqsg"], lines)}

Trained for 2 epochs of MNIST with 200 images per step over all ranks (one seed; accuracies differ by less than the noise of a seed unless by 0.7 points and more);
then the fraction of the nested ranks' elements that nested, and the fraction decoded wrongly:

{table(["ranks", *NESTED, *(f"{name}: nested, wrong" for name in list(NESTED)[1:])], rows)}

Where nesting pays, and the bound on what it can save: [ndqsg](methods/ndqsg.md#where-nesting-pays).
"""
    saved = [one["bytes"][1] / one["bytes"][0] - 1 for one in found["batches"].values()]
    coded = [one["bytes"][3] / one["bytes"][2] - 1 for one in found["batches"].values()]
    figure = f"bytes beside dqsg of equal variance: {100 * max(saved):+.0f} to {100 * min(saved):+.0f} % at fixed length, {100 * max(coded):+.1f} to {100 * min(coded):+.1f} % entropy coded"
    verdict = HOLDS if max(coded) < -0.1 else IN_PART if min(saved) < -0.1 else FAILS
    return Shown(verdict, figure, text, ("ndqsg-correlation.svg",))


CLAIMS = (
    Claim("dqsg-noise", "DQSG", "like SGD with independent bounded uniform noise", (recorded(RESNET9), "thinreduce.codec.decode(thinreduce.codec.encode(layer, \"dqsg:collective=gather,levels=7\"))"), show_dither, measure_dither, 20, rule="holds if no error exceeds κ/2, the distribution is uniform at 5 %, and both correlations are within three deviations of 0; the layers of a step share the seed of the dither, so that their errors are not fully independent and the bound at 5 % is weaker than the number of elements suggests"),
    Claim("dqsg-levels", "DQSG", "levels against training time", (LONG.replace("SPEC", "dqsg:levels=M --link 100mbit"),), untrained("only 3 and 7 levels were trained", "dqsg", "dqsg-paper")),
    Claim("ndqsg-nesting", "NDQSG", "workers' gradients are correlated; far fewer bits at the same variance, no side channel", (recorded(f"{AUTHORS} --ranks 4 --batch B --steps 200 --save-every 20"), ON_RECORDED, f"thinreduce train {AUTHORS} --ranks N --batch 200/N --epochs 2 --method SPEC"), show_nested, measure_nested, 200, rule="in part if nesting saves a tenth at fixed length; holds only if it saves a tenth entropy coded, too"),
)  # fmt: skip
