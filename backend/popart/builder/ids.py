"""Names of tensors: how they are made, made unique, and which prefixes PopART reserves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping


def _returning(prefix: str) -> Callable[[], str]:
    """Return a function that returns a prefix which PopART reserves."""
    return lambda: prefix


reservedGradientPrefix = _returning("Gradient___")
reservedUpdatedVarPrefix = _returning("UpdatedVar___")
reservedAccumPrefix = _returning("Accum___")
reservedAcclPrefix = _returning("Accl___")
reservedAccl1Prefix = _returning("Accl1___")
reservedAccl2Prefix = _returning("Accl2___")
reservedAccl3Prefix = _returning("Accl3___")
reservedStepPrefix = _returning("Step___")
reservedAcclToReducePrefix = _returning("AcclIntoReduce___")
reservedAcclToUpdatePrefix = _returning("AcclIntoUpdate___")
reservedAcclFinalOutPrefix = _returning("AcclOutOfAcclUpdate___")
reservedFinalReducedGradPrefix = _returning("FinalReducedGradient___")
reservedAdamUpdaterPrefix = _returning("AdamUpdater___")
reservedLambR1SqPrefix = _returning("LambR1Sq___")
reservedLambR2SqPrefix = _returning("LambR2Sq___")
reservedStashedPrefix = _returning("Stashed___")
reservedRestoredPrefix = _returning("Restored___")
reservedLossScalingPrefix = _returning("lossScaling_")
reservedRandomSeedPrefix = _returning("randomSeed___")
reservedSeedModifierPrefix = _returning("randomSeedModifier___")
reservedRemoteArgPrefix = _returning("RemoteArg___")
reservedDefaultWeightDecayScaleFactor0Prefix = _returning("weightDecayScaleFactor0___default___")
reservedSpecificWeightDecayScaleFactor0Prefix = _returning("weightDecayScaleFactor0___specific___")
reservedDefaultScaledLearningRate0Prefix = _returning("scaledLearningRate0___default___")
reservedSpecificScaledLearningRate0Prefix = _returning("scaledLearningRate0___specific___")
reservedDefaultScaledWeightDecay1Prefix = _returning("scaledWeightDecay1___default___")
reservedSpecificScaledWeightDecay1Prefix = _returning("scaledWeightDecay1___specific___")
reservedDefaultScaledLearningRate1Prefix = _returning("scaledLearningRate1___default___")
reservedSpecificScaledLearningRate1Prefix = _returning("scaledLearningRate1___specific___")
reservedDefaultDampeningScaleFactor1Prefix = _returning("dampeningScaleFactor1___default___")
reservedSpecificDampeningScaleFactor1Prefix = _returning("dampeningScaleFactor1___specific___")
reservedDefaultScaledMomentum1Prefix = _returning("scaledMomentum1___default___")
reservedSpecificScaledMomentum1Prefix = _returning("scaledMomentum1___specific___")
reservedDefaultLearningRatePrefix = _returning("learningRate___default___")
reservedSpecificLearningRatePrefix = _returning("learningRate___specific___")
reservedDefaultWeightDecayPrefix = _returning("weightDecay___default___")
reservedSpecificWeightDecayPrefix = _returning("weightDecay___specific___")
reservedDefaultLossScalingPrefix = _returning("lossScaling___default___")
reservedSpecificLossScalingPrefix = _returning("lossScaling___specific___")
reservedDefaultMaxWeightNormPrefix = _returning("maxWeightNorm___default___")
reservedSpecificMaxWeightNormPrefix = _returning("maxWeightNorm___specific___")
reservedAutomaticLossScalePrefix = _returning("AutomaticLossScaleProxy___")
reservedDefaultAdamBeta1Prefix = _returning("adamBeta1___default___")
reservedSpecificAdamBeta1Prefix = _returning("adamBeta1___specific___")
reservedDefaultAdamBeta2Prefix = _returning("adamBeta2___default___")
reservedSpecificAdamBeta2Prefix = _returning("adamBeta2___specific___")
reservedDefaultAdamEpsPrefix = _returning("adamEps___default___")
reservedSpecificAdamEpsPrefix = _returning("adamEps___specific___")
reservedDefaultStepPrefix = _returning("step___default___")
reservedSpecificStepPrefix = _returning("step___specific___")


def reserve_id(
    base: str,
    scopes: Iterable[str],
    is_taken: Callable[[str], bool],
    numbers: MutableMapping[str, int],
) -> str:
    """Return a tensor's id: its scopes and its base, joined with "/", with "/1", "/2" ... if taken.

    Args:
        base: Last part of the id, as "MatMul:0" or "input".
        scopes: Names of the scopes around it.
        is_taken: Function that tells whether an id belongs to another tensor.
        numbers: First number that may be free, by id without number; updated.

    Returns:
        An id that is not taken.
    """
    full_name = "/".join([*scopes, base])
    if not is_taken(full_name):
        return full_name
    number = numbers.get(full_name, 1)
    while is_taken(f"{full_name}/{number}"):
        number += 1
    numbers[full_name] = number + 1
    return f"{full_name}/{number}"
