"""Fixtures for tests of frameworks."""

from frameworks.fixtures import among as among
from frameworks.fixtures import servers_end_with_their_file as servers_end_with_their_file
