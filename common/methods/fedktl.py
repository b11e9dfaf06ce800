"""FedKTL: a generator at the server turns clients' class means into images for all clients.

Zhang, Liu, Hua, Cao, "An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side
Pre-trained Generator to Clients in Heterogeneous Federated Learning", CVPR 2024, Algorithm 1.

Client k has a private model θ_k of any architecture: features f_k(x), and a head whose C outputs,
divided by their norm, are the projection z_k(x). C fixed directions m_c form a simplex: unit
vectors with ⟨m_i, m_j⟩ = −1/(C − 1), which all clients draw from the seed. The model predicts the
class with the largest ⟨z_k(x), m_c⟩. The server has a generator G of images G(v) from latent
vectors v, with its map from noise to latent vectors, and a network F from projections to latent
vectors.
Round t:

    client: minimises ArcFace(⟨z_k(x), m_c⟩, y) + μ mean (W_k f_k(x_c) − v_c)² over θ_k and W_k, for
            its samples (x, y) and the received pairs (x_c, v_c), one for each class; in round 1
            there are none. It sends the means P_c of z_k(x) by class, divided by their norms
    server: minimises MMD²(F(P), latent vectors of noise) + λ mean (F(P) − v_y)² over F and v for
            all received pairs (P, y), where v_c starts at the mean of F(P) of class c; then sets
            v_c to this mean again, and x_c = G(v_c)

ArcFace is CE(s · cos, y) with a margin of m radians added to the angle of the true class. W_k is a
linear map without use after the round; every round starts it from the same draw. A class that no
client has sent keeps its v_c, at first of N(0, 1).

``generator`` names the server's G, a .safetensors file with the weights of a ``StyleGAN``
(``common/models/stylegan.py`` has its layers). This project does not train one. Without a file G
has random weights. Its images then have structure but show no objects: they tie the clients'
features together by class, but carry no knowledge from a pre-training. Only a trained G can give
the paper's results.

With ``mu = 0`` a client trains alone, on ArcFace.

Bytes: 4C² + 8C up; down C images of one byte for each pixel and channel, and 4C numbers for each
entry of v; for each client and round.

Deviations:
- The authors' generators are pickles of StyleGAN-XL, StyleGAN3 and Stable Diffusion, which are not
  loaded: a pickle can run code. λ = 1 is their value for StyleGAN-XL, λ = 0.1 that for StyleGAN3.
- Images are rounded to 8 bits, and resized to both sides of the task's images. The released code
  sends floating-point numbers, and crops to a square.
- Clients normalise the images like their own, in the released code by mean 0.5 and deviation 0.5.
- ArcFace has no arc cosine here, which has no gradient at ±1.
- The released code clips the gradient norms of θ_k and W_k at 100 (``train.clip = 100``); the
  server does so for F and v.
- In asynchronous rounds, which the paper does not have, the server combines the newest reply of
  every member, whatever its age.
"""

from typing import Annotated, ClassVar, final

from jaxtyping import Float32, UInt8
from pydantic import Field
from torch import Tensor

from common.exchange import protocol
from common.settings.config import Required
from common.settings.marks import Mark, Place
from common.settings.section import AtLeastOne, NonNegative, Positive
from common.techniques.class_table import Outputs, RowOptions, TableReply

__all__ = ["Options", "Request", "TableReply"]


@final
class Options(RowOptions):
    """Options of FedKTL. Request: generated images with their vectors; reply: class means."""

    facts = RowOptions.facts.but(
        asynchronous="tables",
        down="an image and a latent vector for each class",
        up="normalised means of logits by class",
        sends="mean logits of its classes",
        leaves="normalised mean projections (C numbers) of each class that it has",
        infers="which classes it has, and its private model's mean answer for each. All clients "
        "get images that the server generates from the means over the clients; with a trained "
        "generator they may resemble the classes, never single samples that the generator has not"
        " seen",
        own="θ_k by the angle to fixed directions",
    )

    leaks = "class means of single clients' projections"
    images = "its server generates images with a StyleGAN"
    requires = {"train.class-weights": Required("none", why=", whose loss is ArcFace")}
    outputs: ClassVar[Outputs] = "logits"

    generator: Annotated[str, Place()] = ""
    """Path at the server of the weights of its generator, in safetensors; empty: random weights."""
    mu: NonNegative = 50.0
    """μ, the weight of the generated images in a client's loss."""
    scale: Positive = 64.0
    """s of ArcFace."""
    margin: NonNegative = 0.5
    """m of ArcFace, in radians."""
    lambda_term: NonNegative = 1.0
    """λ, the weight of the distance to the class's vector in the server's loss."""
    server_epochs: Annotated[int, Field(ge=0), Mark.SERVER_EPOCHS] = 100
    """Epochs over the received class means in a round."""
    server_lr: Positive = 0.01
    """Learning rate of the server's Adam."""
    server_batch_size: AtLeastOne = 100
    """Class means in a step of the server."""


@final
class Request(protocol.Request, kind="fedktl.Down"):
    """Request with a generated image and its latent vector for each class; None in round 1."""

    images: UInt8[Tensor, "C channels height width"] | None
    vectors: Float32[Tensor, "C v"] | None
