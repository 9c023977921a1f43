"""The jobs of `python -m bench`: each measures one mechanism, `pipelines` whole ones."""
