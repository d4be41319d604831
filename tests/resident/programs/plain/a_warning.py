import warnings

warnings.warn("careful")
