"""Makes and keeps the tuned configs that the package ships (`tritonsnap/tuning/configs`)."""
