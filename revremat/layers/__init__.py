"""Parts of layers whose derivatives keep no more than they need."""

from revremat.layers._attention import attention as attention
from revremat.layers._attention import softmax as softmax
from revremat.layers._dropout import dropout as dropout
from revremat.layers._keeping import keep_arguments as keep_arguments
from revremat.layers._norms import gelu as gelu
from revremat.layers._norms import layer_norm as layer_norm
from revremat.layers._norms import rms_norm as rms_norm
