"""Attention called with loose position tables, as tests draw them."""

from debertakit.attention import PositionTables


def with_tables(attend):
    """``attend`` with loose tables, one term for each that is given."""

    def call(q, k, v, pos_k, pos_q, layout, relative, *rest, **options):
        terms = ("c2p",) * (pos_k is not None) + ("p2c",) * (pos_q is not None)
        positions = PositionTables(terms, pos_k, pos_q, relative) if terms else None
        return attend(q, k, v, positions, layout, *rest, **options)

    return call
