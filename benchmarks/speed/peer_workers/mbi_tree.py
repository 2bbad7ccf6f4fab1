"""Marginals of a table by `mbi` 2 (Private-PGM) on a tree of pairs, as MST has them; the tree is that of the real data, for free.

python mbi_tree.py codes.npz out.npz mu     # codes (rows, columns) and sizes (columns,); mu of Gaussian differential privacy

Half of mu^2 goes to the columns, half to the pairs of the tree. Writes codes of a synthetic table with as many rows.
"""

import itertools
import sys

import jax
import mbi
import networkx
import numpy as np


def main():
    found = np.load(sys.argv[1])
    codes, sizes, mu = found["codes"], found["sizes"].tolist(), float(sys.argv[3])
    names = [f"c{k}" for k in range(len(sizes))]
    domain = mbi.Domain(names, sizes)
    data = mbi.Dataset(dict(zip(names, codes.T)), domain)
    counts = lambda clique: np.asarray(data.project(clique).datavector(), float)  # noqa: E731
    graph = networkx.Graph()
    for a, b in itertools.combinations(names, 2):
        independent = np.outer(counts((a,)), counts((b,))).ravel() / len(codes)
        graph.add_edge(a, b, weight=-np.abs(counts((a, b)) - independent).sum())
    tree = [tuple(sorted(edge, key=names.index)) for edge in networkx.minimum_spanning_tree(graph).edges]
    rng, measured = np.random.default_rng(), []
    for cliques in ([(name,) for name in names], tree):
        std = np.sqrt(2.0 * len(cliques)) / mu
        for clique in cliques:
            noisy = counts(clique) + std * rng.standard_normal(domain.size(clique))
            measured.append(mbi.LinearMeasurement(noisy, clique, std))
    model = mbi.estimation.MirrorDescent().estimate(domain, measured, known_total=len(codes), iters=1000)
    drawn = model.synthetic_data(len(codes)).to_dict()
    np.savez(sys.argv[2], codes=np.stack([np.asarray(drawn[name]) for name in names], axis=1))


jax.config.update("jax_enable_x64", True)
main()
