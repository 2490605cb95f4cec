"""Packages: ``holdfast``, whose parts are links to the folders beside it, and the command ``application``."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["holdfast", "holdfast.*"]), "application"],
    package_dir={"application": "scripts/application"},
)
