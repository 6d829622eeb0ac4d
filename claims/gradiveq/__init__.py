"""The claims of GradiVeQ."""

from . import aggregation, equal_bytes, overlap, spectra

CLAIMS = (spectra.CLAIM, aggregation.CLAIM, overlap.CLAIM, equal_bytes.CLAIM)
