"""The orders in which a greedy coloring takes its vertices.

The vertices are the rows (or columns) of a pattern, and two conflict when they share a column
(row). The conflict graph S S^T is never formed: a vertex sees its conflicts through the bipartite
graph, where each column remembers, as the bits of one integer, which colors it already holds.
A greedy step then costs as many operations as the vertex has nonzeros.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.indices import pointers, ranges, sorted_unique
from tritonsnap.sparsity.pattern import SparsityPattern

_PATHS_AT_ONCE = 1 << 21


@dataclass(frozen=True, eq=False)
class Bipartite:
    """Which links (columns) each vertex (row) has, and the other way round.

    Columns with equal supports impose equal conflicts, so each distinct column is one link; and
    vertices with equal links are of one kind, whose links are stored once.

    Parameters
    ----------
    kind : int [vertices]
        The kind of each vertex.
    indptr, links : int64 [kinds + 1], int64 [edges]
        The links of each kind.
    link_indptr, members : int64 [links + 1], int [memberships]
        The vertices of each link.
    """

    kind: NDArray[np.integer]
    indptr: NDArray[np.int64]
    links: NDArray[np.int64]
    link_indptr: NDArray[np.int64]
    members: NDArray[np.integer]

    @classmethod
    def of_columns(cls, pattern: SparsityPattern) -> Bipartite:
        """The graph whose vertices are the columns of `pattern`."""
        return cls._of(pattern, pattern.transpose())

    @classmethod
    def of_rows(cls, pattern: SparsityPattern) -> Bipartite:
        """The graph whose vertices are the rows of `pattern`."""
        return cls._of(pattern.transpose(), pattern)

    @classmethod
    def _of(cls, by_vertex: SparsityPattern, by_link: SparsityPattern) -> Bipartite:
        sizes = np.diff(by_vertex.support_indptr)
        kinds = np.repeat(np.arange(by_vertex.num_kinds), sizes)
        num_links = max(by_link.num_kinds, 1)
        keys = sorted_unique(kinds * num_links + by_link.column_kind[by_vertex.support_rows])
        return cls(
            by_vertex.column_kind,
            pointers(keys // num_links, by_vertex.num_kinds),
            keys % num_links,
            by_link.support_indptr,
            by_link.support_rows,
        )

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.kind)

    @property
    def largest_clique(self) -> int:
        """Vertices of the largest link: all of them conflict, so no coloring has fewer colors."""
        return int(np.diff(self.link_indptr).max(initial=0))

    def neighbours(self, vertex: int) -> NDArray[np.integer]:
        """The vertices that share a link with `vertex`, itself included, ascending."""
        kind = self.kind[vertex]
        links = self.links[self.indptr[kind] : self.indptr[kind + 1]]
        starts = self.link_indptr[links]
        return np.unique(self.members[ranges(starts, self.link_indptr[links + 1] - starts)])

    def degrees(self) -> NDArray[np.int64]:
        """int64 [vertices]: with how many others each vertex conflicts, a slice at a time."""
        num_kinds = len(self.indptr) - 1
        count = np.bincount(self.kind, minlength=num_kinds)
        num_links = len(self.link_indptr) - 1
        owner = np.repeat(np.arange(num_links), np.diff(self.link_indptr))
        keys = sorted_unique(owner * max(num_kinds, 1) + self.kind[self.members])
        members = keys % max(num_kinds, 1)
        starts = pointers(keys // max(num_kinds, 1), num_links)
        sizes = np.diff(starts)
        paths = np.concatenate([[0], np.cumsum(sizes[self.links])])[self.indptr]
        degrees = np.zeros(num_kinds, np.int64)
        kinds_at_once = max(1, _PATHS_AT_ONCE // max(num_kinds, 1))
        start = 0
        while start < num_kinds:
            stop = int(np.searchsorted(paths, paths[start] + _PATHS_AT_ONCE, side="right")) - 1
            stop = min(max(stop, start + 1), start + kinds_at_once, num_kinds)
            links = self.links[self.indptr[start] : self.indptr[stop]]
            met = members[ranges(starts[links], sizes[links])]
            marks = np.zeros((stop - start, num_kinds), bool)
            marks[np.repeat(np.arange(stop - start), np.diff(paths[start : stop + 1])), met] = True
            degrees[start:stop] = marks @ count
            start = stop
        others: NDArray[np.int64] = np.maximum(degrees - 1, 0)[self.kind]  # it meets itself
        return others


def natural(graph: Bipartite) -> NDArray[np.int32]:
    """Greedy coloring of the vertices as they come."""
    return _greedy(graph, range(graph.num_vertices))


def largest_first(graph: Bipartite) -> NDArray[np.int32]:
    """Greedy coloring, most conflicts first (Welsh & Powell 1967)."""
    return _greedy(graph, np.argsort(-graph.degrees(), kind="stable").tolist())


def smallest_last(graph: Bipartite) -> NDArray[np.int32]:
    """Greedy coloring against the order in which least-conflicting vertices fall off.

    The order of Matula & Beck (1983): the vertex with the fewest conflicts among those left goes
    last. Never needs more than one color above the graph's degeneracy.
    """
    degrees = graph.degrees().tolist()
    heap = [(degree, vertex) for vertex, degree in enumerate(degrees)]
    heapq.heapify(heap)
    removed = [False] * graph.num_vertices
    last_to_first = []
    while heap:
        degree, vertex = heapq.heappop(heap)
        if removed[vertex] or degree != degrees[vertex]:
            continue
        removed[vertex] = True
        last_to_first.append(vertex)
        for other in graph.neighbours(vertex).tolist():
            if not removed[other]:
                degrees[other] -= 1
                heapq.heappush(heap, (degrees[other], other))
    return _greedy(graph, reversed(last_to_first))


def dsatur(graph: Bipartite) -> NDArray[np.int32]:
    """Greedy coloring, the vertex that sees most colors first (Brelaz 1979), with a heap."""
    degrees = graph.degrees()
    size = graph.num_vertices
    # One integer per heap entry sorts by saturation, then conflicts, then index.
    keys = (-degrees * size + np.arange(size)).tolist()
    saturation_step = (int(degrees.max(initial=0)) + 1) * size
    heap = list(keys)
    heapq.heapify(heap)
    seen = [0] * size
    colors = np.full(size, -1, np.int32)
    while heap:
        key = heapq.heappop(heap)
        vertex = key % size
        if colors[vertex] >= 0 or key != keys[vertex]:
            continue
        bit = ~seen[vertex] & (seen[vertex] + 1)
        colors[vertex] = bit.bit_length() - 1
        neighbours = graph.neighbours(vertex)
        for other in neighbours[colors[neighbours] < 0].tolist():
            if not seen[other] & bit:
                seen[other] |= bit
                keys[other] -= saturation_step
                heapq.heappush(heap, keys[other])
    return colors


def color_by_networkx(graph: Bipartite, strategy: str) -> NDArray[np.int32]:
    """Coloring by a strategy of `networkx.greedy_color`, on the conflict graph itself.

    Raises
    ------
    ValueError
        If networkx has no such strategy.
    """
    import networkx

    strategies = sorted(networkx.algorithms.coloring.greedy_coloring.STRATEGIES)
    if strategy not in strategies:
        raise ValueError(
            f"`order` 'networkx:{strategy}' names no networkx strategy; known: {strategies}"
        )
    conflicts = networkx.Graph()
    conflicts.add_nodes_from(range(graph.num_vertices))
    for vertex in range(graph.num_vertices):
        others = graph.neighbours(vertex)
        conflicts.add_edges_from((vertex, other) for other in others[others > vertex].tolist())
    found = networkx.greedy_color(conflicts, strategy)
    colors = np.empty(graph.num_vertices, np.int32)
    colors[list(found.keys())] = list(found.values())
    return colors


def _greedy(graph: Bipartite, order: Iterable[int]) -> NDArray[np.int32]:
    indptr, all_links, kind = graph.indptr.tolist(), graph.links.tolist(), graph.kind.tolist()
    links = [all_links[start:stop] for start, stop in pairwise(indptr)]
    held = [0] * (len(graph.link_indptr) - 1)  # bit c: the link has a vertex of color c
    colors = np.zeros(graph.num_vertices, np.int32)
    for vertex in order:
        own = links[kind[vertex]]
        forbidden = 0
        for link in own:
            forbidden |= held[link]
        bit = ~forbidden & (forbidden + 1)
        for link in own:
            held[link] |= bit
        colors[vertex] = bit.bit_length() - 1
    return colors
