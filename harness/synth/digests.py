"""SHA-256 of made models, recorded when their recipe was last changed.

A different digest means that the maker is broken, or was changed. After a change that is meant: raise `RECIPE_VERSION`,
make each of these anew, and record what `plegate synth` prints.
"""

from __future__ import annotations

RECORDED: dict[str, str] = {
    "nano-seed0-1000064x160-IQ4_NL": "bf2c7b39a951d1b1fe60a2b1c068c2fc7d766cd6ecd7d7b0acbee32ba4a1a73a",
    "pico-seed0-200000x32-IQ4_NL": "87331e195e1c51f845ce6e0c617c309dced798b653b82032f7ed6d2f6ca6b090",
    "femto-seed0-50000x32-Q8_0": "c5966d752aea897c55c573ddde0c7c9188216ce412fd4b372e95e5d516f8188c",
    "table-seed0-11930464x160-IQ4_NL": "24d30e111e0127bad50057b8042ce5a35b1b2d429ef336c2f185972804f434f8",
    "mini-seed0-1600000x160-IQ4_NL": "5e3363a130cdcd53356fc4d8dab2d24dd7cf17efe69adc92c60e3f8256a16b9e",
}
