"""Call attention with separate position tables."""

from debertakit.attention import PositionTables


def with_tables(attend):
    """Wrap ``attend`` to take pos_k and pos_q. Each table that is not None adds its term (c2p, p2c)."""

    def call(q, k, v, pos_k, pos_q, layout, relative, *rest, **options):
        terms = ("c2p",) * (pos_k is not None) + ("p2c",) * (pos_q is not None)
        positions = PositionTables(terms, pos_k, pos_q, relative) if terms else None
        return attend(q, k, v, positions, layout, *rest, **options)

    return call
