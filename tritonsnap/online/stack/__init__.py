"""Networks of several recurrent layers, and their learners."""
