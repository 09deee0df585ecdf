"""SHA-256 of made models, recorded when their recipe was last changed.

A different digest means that the maker is broken, or was changed.

After a change that is meant: raise `RECIPE_VERSION`, make each of these anew, and record what `plegate synth` prints.
"""

from __future__ import annotations

RECORDED: dict[str, str] = {}
