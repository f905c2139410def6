"""Uplink: the stages that clip, weight, compress, noise and add uploads, and so decide what the server sees of them.

The bound follows from the stages, and the noise from the bound. Nobody types a sensitivity:

>>> from sordino.privacy.uplink.stages import Clip, Noise
>>> central = Uplink(client=(Clip(0.5),), server=(Noise(neighbours="zero_out"),))
>>> central.bound(100)
Bound(l1=5.0, l2=0.5)
>>> central.noise().std(central.bound(100), multiplier=2.0, coordinates=100)
1.0

The same noise before the upload is local privacy. Two different uploads lie up to two radii apart:

>>> local = Uplink(client=(Clip(0.5), Noise()))
>>> local.noise().std(central.bound(100), multiplier=2.0, coordinates=100)
2.0

Stages that guarantee nothing together are refused:

>>> Uplink(client=(Noise(), Clip(0.5)))
Traceback (most recent call last):
sordino.errors.UnsoundGuarantee: a clip after the noise
why: the clip must come first: the noise is sized for vectors that are already clipped
fix: put the clip before the noise
"""

from sordino.privacy.uplink.uplink import Summed, Uplink, single_uploads

__all__ = ["Summed", "Uplink", "single_uploads"]
