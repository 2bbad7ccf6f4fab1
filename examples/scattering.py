"""Public image features: a wavelet scattering transform (Bruna, Mallat 2013), a convolutional network whose filters are fixed.

Tramer and Boneh (2021) train private classifiers on it. Nothing here is learned, so nothing is released.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

ANGLES, GROUPS = 8, 27
CHANNELS = 1 + 2 * ANGLES + ANGLES**2


def _gabor(size, width, angle, frequency, slant):
    """A Gaussian of standard deviation `width` times a wave, on a torus of `size` x `size` pixels."""
    x, y = np.meshgrid(*2 * (np.arange(-2 * size, 2 * size),), indexing="ij")
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    values = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2) + 1j * frequency * along)
    return values.reshape(4, size, 4, size).sum((0, 2)) * slant / (2.0 * np.pi * width**2)


@cache
def filters(size):
    """Fourier transforms: of the low pass (size, size), and of Morlet wavelets (2 scales, ANGLES, size, size)."""
    low, waves = _gabor(size, 1.6, 0.0, 0.0, 1.0), []
    for scale in (1.0, 2.0):
        for angle in np.arange(ANGLES) * np.pi / ANGLES:
            settings = (size, 0.8 * scale, angle)
            wave, bump = (_gabor(*settings, f, 4.0 / ANGLES) for f in (0.75 * np.pi / scale, 0.0))
            waves.append(wave - bump * wave.sum() / bump.sum())  # no response to a constant
    transforms = np.fft.fft2(np.stack([low, *waves])).astype(np.complex64)
    return transforms[0].real, transforms[1:].reshape(2, ANGLES, size, size)


@jax.jit
def maps(images):
    """Images (N, size, size), size a multiple of 4, to scattering maps (N, CHANNELS, size / 4, size / 4)."""
    size = images.shape[-1]
    low, (fine, coarse) = filters(size)
    fft, ifft = jnp.fft.fft2, jnp.fft.ifft2
    spectrum = fft(images)[:, None]
    first = [fft(jnp.abs(ifft(spectrum * waves))) for waves in (fine, coarse)]
    second = fft(jnp.abs(ifft(first[0][:, :, None] * coarse))).reshape(len(images), -1, size, size)
    blurred = jnp.concatenate([spectrum, *first, second], axis=1) * low
    # every fourth pixel of the blurred maps: their spectrum, folded
    folded = blurred.reshape(*blurred.shape[:2], 4, size // 4, 4, size // 4).mean((2, 4))
    return ifft(folded).real


def features(images, batch=1_000):
    """Scattering maps (N, CHANNELS * size^2 / 16) of images (N, size, size), each of norm at most 1.

    Normalised image by image within GROUPS groups of channels, so no row says anything about another."""

    @jax.jit
    def normalised(images):
        grouped = maps(images).reshape(len(images), GROUPS, -1)
        grouped = grouped - grouped.mean(-1, keepdims=True)
        grouped /= jnp.sqrt((grouped**2).mean(-1, keepdims=True)) + 1e-3
        return grouped.reshape(len(images), -1) / (GROUPS * grouped.shape[-1]) ** 0.5

    return np.concatenate([normalised(images[k : k + batch]) for k in range(0, len(images), batch)])
