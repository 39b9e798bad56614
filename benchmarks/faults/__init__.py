"""Fault injection: interrupt and damage jobs at random moments, resume them, and compare with an undisturbed run.

jobs.py        the jobs: their commands, their result, and the files that a fault can damage
processes.py   commands in forked processes, interrupted at a chosen moment; two ranks under torchrun's agent
rank.py        one rank under the torchrun command
damage.py      flipped bits, truncation, read errors, a full disk
runs.py        one seeded run: fault, resume, outcome
__main__.py    options and tables
"""
