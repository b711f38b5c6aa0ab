"""Name each Cython module of ``src/farpool/native`` explicitly; everything else is in ``pyproject.toml``.

The folder that ``native`` links to is called ``cython``, so it must never become a package of that name:
each extension therefore gets its full name here.
"""

import os
import subprocess
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("src/farpool/native")
VERBS_HEADER = "infiniband/verbs.h"
VERBS = {"verbs", "rdma_lane", "rdma_region", "rdma_pipeline", "verbs_limits", "verbs_stub"}
"""Built only where libibverbs-dev is: the rest works without."""


def has_verbs() -> bool:
    """Tell whether the compiler finds libibverbs's header."""
    compiler = os.environ.get("CC", "cc").split()
    probe = f"#include <{VERBS_HEADER}>\n"
    command = [*compiler, "-E", "-xc", "-"]
    return subprocess.run(command, input=probe.encode(), capture_output=True, check=False).returncode == 0  # noqa: S603


with_verbs = has_verbs()
if not with_verbs:
    print("farpool: no <infiniband/verbs.h>: building without rdma (install libibverbs-dev to have it)")

extensions = [
    Extension(
        f"farpool.native.{source.stem}",
        [str(source)],
        libraries=["pthread", "ibverbs"] if source.stem in VERBS else ["pthread"],
        extra_compile_args=["-O3", "-g1", "-fno-strict-aliasing"],
        define_macros=[("_GNU_SOURCE", None)],
    )
    for source in sorted(NATIVE.glob("*.pyx"))
    if with_verbs or source.stem not in VERBS
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        build_dir="build",
        annotate=False,
        compiler_directives={
            "language_level": 3,
            # Not freethreading_compatible: counts such as CxlRegion.busy are kept under the GIL, so an interpreter
            # without one must turn it on.
            "embedsignature": True,
            # Signatures that tests/unit/test_stubs.py can parse.
            "embedsignature.format": "python",
        },
    ),
    options={"build_ext": {"parallel": True}},
)
