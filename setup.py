"""Build the Cython modules; everything else is in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# GUIDELOOM_CHECKED=1 keeps bounds and wraparound checks in the compiled loops; the suite runs that way too.
checked = os.environ.get("GUIDELOOM_CHECKED") == "1"

modules = sorted(Path("guideloom/_speedups").glob("*.pyx"))
extensions = [
    Extension(
        f"guideloom._speedups.{module.stem}",
        [str(module)],
        depends=[str(header) for header in sorted(module.parent.glob("*.h"))],
        extra_compile_args=["-O3", "-g0", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter"],
    )
    for module in modules
]

setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives={
            "language_level": "3",
            "boundscheck": checked,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "embedsignature": False,
            "freethreading_compatible": False,
        },
        force=checked,
    )
)
