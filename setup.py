"""Name each Cython module of ``src/farpool/native`` explicitly; everything else is in ``pyproject.toml``.

The folder that ``native`` links to is called ``cython``, so it must never become a package of that name:
each extension therefore gets its full name here.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("src/farpool/native")

extensions = [
    Extension(
        f"farpool.native.{source.stem}",
        [str(source)],
        libraries=["pthread"],
        extra_compile_args=["-O3", "-g1", "-fno-strict-aliasing"],
        define_macros=[("_GNU_SOURCE", None)],
    )
    for source in sorted(NATIVE.glob("*.pyx"))
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        build_dir="build",
        annotate=False,
        compiler_directives={
            "language_level": 3,
            "freethreading_compatible": True,
            "embedsignature": True,
            # Signatures that tests/unit/test_stubs.py can parse.
            "embedsignature.format": "python",
        },
    ),
    options={"build_ext": {"parallel": True}},
)
