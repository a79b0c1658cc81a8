"""What a card really does, beside what its data sheet and an ahead-of-time compile say.

    python -m experiments.calibrate --seconds 540 --out DIR

Jobs are ordered by what they tell, and each runs in a process of its own with a time
limit of its own. Every result is one line of `results.jsonl` at once; the tables of
`summary.txt` are made from that file alone. Stopped and begun again with the same
folder it goes on where it was. It needs no network and no installation: a plain folder
with this repository, and wheels that lack there on PYTHONPATH (`tools/wheels`).
"""
