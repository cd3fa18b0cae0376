"""HTP remedies, judged by the real library."""
