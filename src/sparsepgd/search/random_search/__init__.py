"""Black boxes: random search for every pattern (Sparse-RS), and one for l0-trained models (Cluster-RS)."""
