"""Cells whose Jacobians do not factor into gains and sources, and the learners' forms for them."""
