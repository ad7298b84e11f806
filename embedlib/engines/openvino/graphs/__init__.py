"""A model as a graph of OpenVINO's own operators, whole or in stages."""
