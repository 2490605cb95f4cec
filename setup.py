"""The package ``holdfast``, whose parts are links to the folders beside it."""

from setuptools import find_packages, setup

setup(packages=find_packages(include=["holdfast", "holdfast.*"]))
