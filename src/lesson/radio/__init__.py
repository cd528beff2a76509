"""The radio link between a client and the base station, Eq. (5) and (6): path loss, shadowing, fading and mobility, and
when transfers complete on changing or shared channels."""
