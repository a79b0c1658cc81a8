"""Reports of long programs stay quick."""

import pytest

from experiments.bench.report_speed import run


@pytest.mark.slow
def test_every_part_is_timed():
    figures = run(layers=2, target="cpu:1")
    assert min(figures.read_s, figures.text_s, figures.page_s) > 0
    assert figures.instructions > figures.buffers > 0


@pytest.mark.slow  # compiling takes minutes
def test_96_layers_unrolled_are_read_and_rendered_in_20_seconds():
    figures = run(layers=96)
    assert figures.instructions > 20_000
    assert figures.total_s < 20
