"""`servesim hardware`: the devices that are known, or one of them, of a preset or of a file."""

from __future__ import annotations

from servesim.catalog.hardware import HARDWARE, device_document, load_hardware
from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group
from servesim.report.catalog import device_text, devices_text
from servesim.report.documents import document

EXAMPLES = (
    "servesim hardware",
    "servesim hardware h100-sxm-80gb l4-24gb",
    "servesim hardware fitted.json",
    "servesim hardware rtx-4090-24gb --json",
)


def build_parser() -> Parser:
    parser = Parser(
        "hardware",
        "The devices that are known, one row each; or what is known of each that is named: a preset or a device's\n"
        "JSON file, which calibrate writes.",
        EXAMPLES,
        (Group("output", (JSON, OUTPUT, QUIET)),),
        usage="[NAME...] [options]",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a device, as --hardware takes it; all presets without one"
    )
    return parser


def run(call: Call) -> Result:
    names = call.values.get("names") or []
    devices = [load_hardware(name) for name in names or HARDWARE]
    config = {"names": names} if names else {}
    return Result(
        document=lambda: document("hardware", config, {"devices": [device_document(device) for device in devices]}),
        text=lambda: "\n".join(map(device_text, devices)) if names else devices_text(devices),
    )
