"""Calibrate on a real llama.cpp server and predict what was not fitted: `python3 -m tests.real_server [--threads N]`.

The loop of the README's worked example: loadgen saves runs at concurrency 1 and 4, calibrate fits a device to them, the
simulator predicts concurrency 8 and a scan of prompt and of output lengths, and each figure is held against its bound:
throughput within 10 % (25 % must never be missed), TTFT p50 and TPOT p50 within 15 %. It measures this machine, so it
wants a quiet one; exit 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from servesim.analysis.calibrate import Calibration, calibrate
from servesim.analysis.measurement import Measurement, figures_of
from servesim.analysis.readings import read_measurements
from servesim.report.calibration import calibration_text
from servesim.runreader import read_run
from servesim.summary import summarize
from tests.smoke import ROOT, free_port, install, server, servesim

FITTED = {"c1": (1, "40", "64", 12), "c4": (4, "40", "64", 32), "long": (1, "400", "16", 6)}
HELD = {
    "c8": (8, "40", "64", 48),
    **{f"prompt {n}": (1, str(n), "32", 6) for n in (20, 80, 160, 320, 640)},
    **{f"output {n}": (1, "40", str(n), 6) for n in (16, 32, 96, 128)},
}
BOUNDS = {"throughput": 0.10, "ttft_p50": 0.15, "tpot_p50": 0.15}
NEVER = 0.25


def measure(port: int, folder: Path, name: str, load: tuple[int, str, str, int]) -> Path:
    concurrency, prompt, output, requests = load
    path = folder / f"{name.replace(' ', '-')}.jsonl"
    command = servesim("loadgen", "--url", f"http://127.0.0.1:{port}", "--concurrency", str(concurrency))
    command += ["--requests", str(requests), "--prompt-tokens", prompt, "--output-tokens", output, "--ignore-eos"]
    command += ["--wait-ready", "60s", "--quiet", "--save", str(path)]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, timeout=900)
    return path


def held_errors(fit: Calibration, path: Path, measurement: Measurement) -> dict[str, float]:
    """Return how far the fitted device is off, relative, for each of `BOUNDS`."""
    run = read_run(str(path))
    on = measurement.on(fit.hardware, fit.cost_model)
    names = ("ttft_p50", "tpot_p50")
    simulated = on.simulate()
    measured, predicted = figures_of(run, names), figures_of(simulated, names)
    errors = {name: predicted[name] / measured[name] - 1 for name in names}
    rates = [summarize(each).throughput.output_tokens_per_s or 0.0 for each in (simulated, run)]
    return {"throughput": rates[0] / rates[1] - 1, **errors}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path, help="keep the saved runs in this folder, or use those that are there")
    asked = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        paths = {name: folder / f"{name.replace(' ', '-')}.jsonl" for name in (*FITTED, *HELD)}
        if not all(path.exists() for path in paths.values()):
            folder.mkdir(parents=True, exist_ok=True)
            port = free_port()
            with server(port, asked.threads):
                for name, load in {**FITTED, **HELD}.items():
                    measure(port, folder, name, load)
                    print(f"measured {name}", file=sys.stderr)
        _, model = install()
        options = {"hardware": "cpu-4vcpu", "model": str(model)}
        found = {name: read_measurements(str(path), options)[0] for name, path in paths.items()}
        for cost_model in ("roofline", "detailed"):
            fit = calibrate([found[name] for name in FITTED], cost_model=cost_model)
            print(calibration_text(fit.as_dict()))
            for name in HELD:
                errors = held_errors(fit, paths[name], found[name])
                told = "   ".join(f"{figure} {error:+.1%}" for figure, error in errors.items())
                outside = [figure for figure, error in errors.items() if abs(error) > BOUNDS[figure]]
                never = abs(errors["throughput"]) > NEVER
                print(
                    f"{cost_model:<9} {name:<12} {told}   {'outside: ' + ', '.join(outside) if outside else 'within'}"
                )
                missed += cost_model == "detailed" and bool(outside or never)
            print()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
